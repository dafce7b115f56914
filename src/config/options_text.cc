// docs/CONFIG.md and the help text, from options.def.
#include <fmt/format.h>

#include "config/option_value.h"
#include "config/options.h"
#include "config/profiles.h"

namespace vma {
namespace {

constexpr const char kIntro[] = R"(# Settings

This file is generated from `src/config/options.def` by `vma_docgen`; a test compares the two.

Settings are environment variables, read once when the library starts and again in a forked child that starts to use it.
An unset variable means what Linux does, or an adaptive choice; a variable that is set, also to VMA's default, means what
VMA does with that value. `VMA_SPEC=vma` sets every VMA default at once.

Order of precedence, the last wins: built-in default, presets of `VMA_SOCKETXTREME`, profile of `VMA_SPEC`, the file of
`VMA_CONFIG_JSON`, the variable itself (an older or XLIO's name of it counts as it), adjustments (each is reported when it
changes a value that was given). The file may name a profile, too: its values stay below those of the file.

The file is JSON: an object of variable names and values (`{"VMA_SPEC": "latency", "VMA_RX_POLL": -1, "VMA_TCP_NODELAY": true}`)
as [libvma.schema.json](libvma.schema.json) describes it; an editor that is told of it (`"$schema"`) completes and checks. A
value that does not fit is reported with file, line and variable and leaves that variable alone; of a file that is no such
object nothing is used. In secure-execution mode it is not read.

How values are read:

* A number is decimal, without suffix. Text after it is reported and ignored.
* A switch is on for any number but 0. Words (`yes`, `true`, nothing at all) are reported and mean off, as in VMA.
* A number out of range is reported. Depending on the variable the nearest bound is used, or the value is ignored.
* A `%d` in a path or in the application id becomes the process id, once.
* Every report is one warning that names the variable, the value, what was expected and what is used.
* An unknown `VMA_` name is reported with the nearest known one. `XLIO_` names with the same meaning are accepted.
* In secure-execution mode (set-user-id, file capabilities) variables that name files or addresses are ignored.

Effect: *yes*, or *none*: accepted, and a line says what to use instead.
"Known from" is, as far as we know, the VMA release that documents the variable; 10.0 marks those new in this library.
)";

std::string cell(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '|') out += '\\';
        out += c;
    }
    return out;
}
std::string code(std::string_view text) {
    return text.empty() ? "(empty)" : fmt::format("`{}`", cell(text));
}

const char* effect_text(const OptionRow& row) {
    return row.effect == OptionEffect::in_effect ? "yes" : "none";
}

std::string markdown_row(const OptionRow& row) {
    const std::string ours = option_default_text(row, false), vma = option_default_text(row, true);
    std::string unset = row.unset[0] != '\0' ? cell(row.unset) : code(ours);
    std::string help = row.help;
    if (row.kind == OptionKind::choice && !option_choice_by_word(row)) {
        help += " Values:";
        for (const OptionChoice& c : option_choices(row)) {
            std::string_view text = c.text;
            if (text.starts_with('(')) text = text.substr(1, text.size() - 2);
            help += fmt::format(" {} {};", c.number, text);
        }
        help.back() = '.';
    }
    std::string range = option_range(row);
    if (row.unit[0] != '\0') range += fmt::format(" {}", row.unit);
    return fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", row.name, cell(range), unset,
                       code(vma), cell(help), effect_text(row), row.known);
}

std::string profiles_markdown() {
    std::string out =
        "\n## Profiles of VMA_SPEC\n\nApplied before the explicit variables.\n\n"
        "| `VMA_SPEC` | Sets |\n|---|---|\n";
    Spec last = Spec::none;
    for (const Preset& p : profile_presets()) {
        if (p.spec != last) {
            if (last != Spec::none) out += " |\n";
            out += fmt::format("| `{}` | ", spec_name(p.spec));
            if (p.spec == Spec::ultra_latency || p.spec == Spec::latency)
                out += "one send buffer and four receive buffers per socket at a time, ";
            if (p.spec == Spec::lbm_29west || p.spec == Spec::wombat_fh)
                out += "pipe writes collapsed, ";
        } else {
            out += ", ";
        }
        last = p.spec;
        Options o;
        store_option(o, p.option, {p.number, p.text ? p.text : ""}, Origin::spec);
        out += fmt::format("`{}={}`", option_row(p.option).name, option_value_text(o, p.option));
    }
    out +=
        " |\n| `vma` | every behaviour of the column \"VMA\"; paths, names, the log and "
        "`VMA_IGNORE_FIREWALL` stay |\n";
    return out;
}

std::string old_names_markdown() {
    std::string out =
        "\n## Older names\n\nAccepted with a warning; the new name wins when both are set.\n\n"
        "| Name | Use | Known from |\n|---|---|---|\n";
    for (const OptionAlias& a : option_aliases())
        out += fmt::format("| `{}` | `{}` | {} |\n", a.name, option_row(a.target).name, a.known);
    out +=
        "\n## Removed variables\n\nAccepted with a warning and without effect.\n\n"
        "| Name | Instead | Known until |\n|---|---|---|\n";
    for (const OptionGone& g : options_gone())
        out += fmt::format("| `{}` | {} | {} |\n", g.name, cell(g.help), g.known);
    out +=
        "\n## XLIO names\n\nAccepted as the variable of the same meaning; the `VMA_` name "
        "wins.\n\n";
    const char* separator = "";
    for (const OptionRow& row : option_rows()) {
        if (row.xlio[0] == '\0') continue;
        out += fmt::format("{}`XLIO_{}`", separator, row.xlio);
        if (std::string_view(row.xlio) != row.name + 4) out += fmt::format(" (`{}`)", row.name);
        separator = ",\n";
    }
    return out + ".\n";
}

std::string drivers_markdown() {
    return "\n## Variables set for the drivers\n\n"
           "For the NIC's user-space driver, before the first verbs ring is looked for.\n\n"
           "| Variable | Value |\n|---|---|\n"
           "| `MLX4_DEVICE_FATAL_CLEANUP`, `MLX5_DEVICE_FATAL_CLEANUP`, "
           "`RDMAV_ALLOW_DISASSOC_DESTROY` | 1 |\n"
           "| `MLX4_POST_SEND_PREFER_BF`, `MLX5_POST_SEND_PREFER_BF`, `MLX5_SHUT_UP_BF` | 1, 1, 0 "
           "with `VMA_BF=1`; "
           "0, 0, 1 with `VMA_BF=0` |\n"
           "| `MLX_QP_ALLOC_TYPE`, `MLX_CQ_ALLOC_TYPE` | ANON, PREFER_CONTIG or ALL for "
           "`VMA_MEM_ALLOC_TYPE` 0, 1, 2, where that is set; "
           "only if unset |\n"
           "| `RDMAV_HUGEPAGES_SAFE` | 1 with `VMA_MEM_ALLOC_TYPE=2`, where that is set; only if "
           "unset |\n";
}

}  // namespace

std::string options_markdown() {
    std::string out = kIntro;
    for (unsigned g = 0; g < unsigned(OptionGroup::count); ++g) {
        out += fmt::format(
            "\n## {}\n\n| Variable | Values | Unset | VMA | Meaning | Effect | Known from |\n"
            "|---|---|---|---|---|---|---|\n",
            option_group_name(OptionGroup(g)));
        for (const OptionRow& row : option_rows())
            if (unsigned(row.group) == g) out += markdown_row(row);
    }
    return out + profiles_markdown() + old_names_markdown() + drivers_markdown();
}

std::string options_help() {
    std::string out;
    for (unsigned g = 0; g < unsigned(OptionGroup::count); ++g) {
        out += fmt::format("{}:\n", option_group_name(OptionGroup(g)));
        for (const OptionRow& row : option_rows()) {
            if (unsigned(row.group) != g) continue;
            const std::string unset =
                row.unset[0] != '\0' ? row.unset : option_default_text(row, false);
            out += fmt::format("  {}\n      {}\n      {}{}{}; unset: {}\n", row.name, row.help,
                               option_range(row), row.unit[0] ? " " : "", row.unit,
                               unset.empty() ? "(empty)" : unset);
        }
    }
    return out;
}

}  // namespace vma
