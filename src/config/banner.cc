#include "config/banner.h"

#include <fmt/format.h>

#include "config/option_value.h"

namespace vma {
namespace {

constexpr const char kRule[] =
    "---------------------------------------------------------------------------";
static_assert(sizeof(kRule) - 1 == 75);

// Rows that change their label when the value is 0; some are shown at info even if that is the default.
struct OffRow {
    Opt option;
    const char* label;
    bool always_info;
};
constexpr OffRow kOffRows[] = {
    {Opt::progress_engine_interval, "CQ Drain Thread", true},
    {Opt::cq_aim_interval_msec, "CQ Adaptive Moderation", true},
    {Opt::rx_cq_drain_rate_nsec, "Rx CQ Drain Rate", false},
};

std::string text_row(std::string_view label, std::string_view value, const char* name) {
    return fmt::format("{:<30} {:<26} [{}]", label, value, name);
}
std::string number_row(std::string_view label, int64_t value, const char* name) {
    return fmt::format("{:<30} {:<26} [{}]", label, value, name);
}
std::string number_text_row(std::string_view label, int64_t value, std::string_view text,
                            const char* name) {
    return fmt::format("{:<30} {:<2}{:<24} [{}]", label, value, text, name);
}

std::string choice_row(const OptionRow& row, int64_t number) {
    for (const OptionChoice& c : option_choices(row)) {
        if (c.number != number) continue;
        if (c.text.starts_with('(')) return number_text_row(row.label, number, c.text, row.name);
        return text_row(row.label, c.text, row.name);
    }
    return number_row(row.label, number, row.name);
}

std::string value_row(const Options& o, const OptionRow& row) {
    const OptionValue v = load_option(o, row.id);
    switch (row.kind) {
        case OptionKind::boolean:
            return text_row(row.label, v.number ? "Enabled " : "Disabled", row.name);
        case OptionKind::integer:
        case OptionKind::uinteger:
        case OptionKind::uinteger_or_0:
        case OptionKind::power_of_two:
            return number_row(row.label, v.number, row.name);
        case OptionKind::choice:
            return choice_row(row, v.number);
        case OptionKind::spec:
            return text_row(row.label, spec_banner(o.spec), row.name);
        default:
            return text_row(row.label, option_value_text(o, row.id), row.name);
    }
}

// The rows of the head come before "Log Level" and only with a profile.
bool in_head(Opt o) { return o == Opt::spec || o == Opt::spec_param1 || o == Opt::spec_param2; }

void print_head(const Options& o, const LineSink& sink) {
    if (o.spec == Spec::none) return;
    std::string line;
    LogLevel level{};
    const bool uses_params = o.spec == Spec::lbm_29west || o.spec == Spec::wombat_fh;
    for (const Opt id : {Opt::spec, Opt::spec_param1, Opt::spec_param2})
        if ((id == Opt::spec || uses_params || o.is_set(id)) && banner_row(o, id, line, level))
            sink(LogLevel::info, line);
}

}  // namespace

const char* version_line() {
    static constexpr char line[] = "VMA_VERSION: 10.0.0-1 Release built on " __DATE__ " " __TIME__;
    return line;
}

bool banner_row(const Options& o, Opt id, std::string& line, LogLevel& level) {
    const OptionRow& row = option_row(id);
    if (row.label[0] == '\0') return false;
    const bool differs = !(load_option(o, id) == option_default_value(row, false));
    const bool has_unset_meaning = row.unset[0] != '\0' && row.group != OptionGroup::log;
    level = differs || (has_unset_meaning && o.is_set(id)) || id == Opt::tracelevel
                ? LogLevel::info
                : LogLevel::details;
    for (const OffRow& off : kOffRows) {
        if (off.option != id || load_option(o, id).number != 0) continue;
        if (off.always_info) level = LogLevel::info;
        line = text_row(off.label, "Disabled", row.name);
        return true;
    }
    line = has_unset_meaning && !o.is_set(id) && !differs ? text_row(row.label, "auto", row.name)
                                                          : value_row(o, row);
    return true;
}

void print_banner(const Options& o, const BannerFacts& facts, const LineSink& sink) {
    const auto fact = [&](LogLevel level, const char* label, const std::string& value) {
        if (!value.empty()) sink(level, fmt::format("{}: {}", label, value));
    };
    sink(LogLevel::info, kRule);
    sink(LogLevel::info, version_line());
    fact(LogLevel::info, "Git", facts.git);
    fact(LogLevel::info, "Cmd Line", facts.command_line);
    fact(LogLevel::debug, "Current Time", facts.current_time);
    if (facts.pid != 0) sink(LogLevel::debug, fmt::format("Pid: {:5}", facts.pid));
    fact(LogLevel::info, "OFED Version", facts.ofed_version);
    fact(LogLevel::debug, "System", facts.kernel);
    fact(LogLevel::debug, "Architecture", facts.architecture);
    fact(LogLevel::debug, "Node", facts.node);
    sink(LogLevel::info, kRule);
    print_head(o, sink);
    std::string line;
    LogLevel level{};
    for (const OptionRow& row : option_rows())
        if (!in_head(row.id) && banner_row(o, row.id, line, level)) sink(level, line);
    sink(LogLevel::info, kRule);
}

}  // namespace vma
