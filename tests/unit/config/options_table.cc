// Every variable of options.def: one value below its range, one above, one of the wrong type, and what is said and used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "config/option_value.h"
#include "config/options.h"
#include "support/parsed_options.h"

namespace vma {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<std::string> warnings(const ParsedOptions& p) {
    std::vector<std::string> out;
    for (const Note& n : p.notes)
        if (n.level == LogLevel::warning) out.push_back(n.text);
    return out;
}

// One bad value: exactly one warning, which names the variable, the value, the range and the value then in force.
void expect_one_complaint(const OptionRow& row, const std::string& text,
                          const OptionValue& in_force) {
    SCOPED_TRACE(std::string(row.name) + "=" + text);
    const ParsedOptions p = parse({std::string(row.name) + "=" + text});
    std::vector<std::string> about;
    for (const std::string& w : warnings(p))
        if (w.find("expected") != std::string::npos) about.push_back(w);
    ASSERT_EQ(about.size(), 1u);
    EXPECT_THAT(about[0], HasSubstr(std::string(row.name) + "=\"" + text.substr(0, 80)));
    EXPECT_THAT(about[0], HasSubstr("expected " + option_range(row)));
    EXPECT_EQ(load_option(p.options, row.id), in_force);
    const bool kept_default = !p.options.is_set(row.id);
    const std::string used =
        kept_default && row.unset[0] != '\0' ? std::string("using the default (") + row.unset + ")"
        : kept_default ? "using the default \"" + option_value_text(p.options, row.id) + "\""
                       : "using \"" + option_value_text(p.options, row.id) + "\"";
    EXPECT_THAT(about[0], HasSubstr(used));
}

// Where nearness means something, a value that cannot be used is answered with the nearest one that can; it is valid.
void expect_nearest(const OptionRow& row, const std::string& text, const char* nearest) {
    SCOPED_TRACE(std::string(row.name) + "=" + text);
    const auto w = warnings(parse({std::string(row.name) + "=" + text}));
    ASSERT_FALSE(w.empty());
    EXPECT_THAT(w[0], HasSubstr(std::string(" (nearest: ") + nearest + ")"));
    const ParsedOptions again = parse({std::string(row.name) + "=" + nearest});
    for (const std::string& line : warnings(again)) EXPECT_THAT(line, Not(HasSubstr("expected")));
    EXPECT_TRUE(again.options.is_set(row.id));
}

TEST(OptionTable, BadValuesAreToldTheNearest) {
    unsigned numbers = 0;
    for (const OptionRow& row : option_rows()) {
        const bool number = row.kind == OptionKind::integer || row.kind == OptionKind::uinteger ||
                            row.kind == OptionKind::uinteger_or_0 || row.kind == OptionKind::choice;
        if (!number || row.outside != OutOfRange::fallback) continue;
        ++numbers;
        expect_nearest(row, std::to_string(row.max + 1), std::to_string(row.max).c_str());
        if (row.kind != OptionKind::uinteger_or_0)
            expect_nearest(row, std::to_string(row.min - 1), std::to_string(row.min).c_str());
    }
    EXPECT_GT(numbers, 50u);
    expect_nearest(option_row(Opt::packet_ring_bytes), "3000000", "2097152");
    expect_nearest(option_row(Opt::packet_ring_bytes), "1", "1048576");
    expect_nearest(option_row(Opt::rx_prefetch_bytes_before_poll), "3", "0");
    expect_nearest(option_row(Opt::rx_prefetch_bytes_before_poll), "31", "32");
    expect_nearest(option_row(Opt::ring_allocation_logic_rx), "24", "20");
    expect_nearest(option_row(Opt::ring_kind), "pakcet", "packet");
    expect_nearest(option_row(Opt::tracelevel), "debgu", "DEBUG");
    expect_nearest(option_row(Opt::spec), "latencyy", "latency");
    expect_nearest(option_row(Opt::spec), "multi-ring-latency", "multi_ring_latency");
}

bool counts(OptionKind k) {
    return k == OptionKind::integer || k == OptionKind::uinteger || k == OptionKind::uinteger_or_0;
}

// The value that remains when a number is out of range.
OptionValue remaining(const OptionRow& row, int64_t bound) {
    if (row.outside == OutOfRange::clamp) return {bound, {}};
    OptionValue v = option_default_value(row, false);
    // 0 receive polls count as one, also when nothing else is wrong.
    return v;
}

TEST(OptionTable, BelowRange) {
    int checked = 0;
    for (const OptionRow& row : option_rows()) {
        if (row.kind == OptionKind::boolean)
            expect_one_complaint(row, "-1", {1, {}});
        else if (row.kind == OptionKind::choice)
            expect_one_complaint(row, std::to_string(row.min - 1),
                                 option_default_value(row, false));
        else if (row.kind == OptionKind::uinteger_or_0)
            expect_one_complaint(row, std::to_string(row.min - 1), remaining(row, row.min));
        else if (counts(row.kind) || row.kind == OptionKind::power_of_two)
            expect_one_complaint(row, std::to_string(row.min - 1), remaining(row, row.min));
        else if (row.kind == OptionKind::level || row.kind == OptionKind::spec ||
                 row.kind == OptionKind::ipv4)
            expect_one_complaint(row, "-2", option_default_value(row, false));
        else if (row.kind == OptionKind::cpuset)
            expect_one_complaint(row, "-2", option_default_value(row, false));
        else if (row.kind == OptionKind::pointer)
            expect_one_complaint(row, "-2", {0, {}});
        else
            continue;
        ++checked;
    }
    EXPECT_GT(checked, 90);
}

TEST(OptionTable, AboveRange) {
    int checked = 0;
    for (const OptionRow& row : option_rows()) {
        std::string text;
        OptionValue v = option_default_value(row, false);
        switch (row.kind) {
            case OptionKind::boolean:
                text = "2";
                v = {1, {}};
                break;
            case OptionKind::integer:
            case OptionKind::uinteger:
            case OptionKind::uinteger_or_0:
            case OptionKind::power_of_two:
                text = std::to_string(row.max + 1);
                v = remaining(row, row.max);
                break;
            case OptionKind::choice:
                text = std::to_string(row.max + 1);
                break;
            case OptionKind::level:
                text = "7";
                break;
            case OptionKind::spec:
                text = "7751";
                break;
            case OptionKind::cpuset:
                text = "1024";
                break;
            case OptionKind::ipv4:
                text = "256.0.0.1";
                break;
            case OptionKind::pointer:
                text = "0x10000000000000000";
                break;
            default:
                text = std::string(size_t(row.max) + 1, 'x');
                break;
        }
        expect_one_complaint(row, text, v);
        ++checked;
    }
    EXPECT_EQ(checked, int(kOptionCount));
}

TEST(OptionTable, WrongType) {
    for (const OptionRow& row : option_rows()) {
        if (row.kind == OptionKind::text || row.kind == OptionKind::text_pid ||
            row.kind == OptionKind::path || row.kind == OptionKind::path_pid)
            continue;  // any text is of their type
        if (row.kind == OptionKind::boolean) {
            // As VMA: a word is 0. VMA does not say so.
            expect_one_complaint(row, "yes", {0, {}});
            expect_one_complaint(row, "", {0, {}});
        } else {
            expect_one_complaint(row, "zigzag", option_default_value(row, false));
        }
    }
}

TEST(OptionTable, JunkAfterANumberIsReportedAndTheNumberUsed) {
    for (const OptionRow& row : option_rows()) {
        if (!counts(row.kind) && row.kind != OptionKind::boolean &&
            row.kind != OptionKind::power_of_two)
            continue;
        if (row.id == Opt::rx_poll || row.id == Opt::select_poll_os_force)
            continue;  // adjusted, tested on their own
        SCOPED_TRACE(row.name);
        const std::string value = std::to_string(row.max);
        const ParsedOptions p = parse({std::string(row.name) + "=" + value + "k"});
        const auto w = warnings(p);
        ASSERT_FALSE(w.empty());
        EXPECT_THAT(w[0], HasSubstr("text after the number"));
        EXPECT_EQ(p.options.origin(row.id), Origin::environment);
    }
}

TEST(OptionTable, GoodValuesAreTakenSilently) {
    for (const OptionRow& row : option_rows()) {
        if (row.effect == OptionEffect::no_meaning || row.kind == OptionKind::pointer) continue;
        SCOPED_TRACE(row.name);
        for (const bool vma : {false, true}) {
            // Unset means no tick; a 0 that is set is a tick below VMA_TIMER_RESOLUTION_MSEC.
            if (row.id == Opt::tcp_timer_resolution_msec && !vma) continue;
            const ParsedOptions p =
                parse({std::string(row.name) + "=" + option_default_text(row, vma)});
            EXPECT_THAT(warnings(p), testing::IsEmpty());
            EXPECT_TRUE(p.options.is_set(row.id));
            EXPECT_EQ(load_option(p.options, row.id), option_default_value(row, vma));
        }
    }
}

TEST(OptionTable, EveryChoiceIsTaken) {
    for (const OptionRow& row : option_rows()) {
        if (row.kind != OptionKind::choice) continue;
        for (const OptionChoice& c : option_choices(row)) {
            const ParsedOptions p = parse({std::string(row.name) + "=" + std::to_string(c.number)});
            EXPECT_EQ(load_option(p.options, row.id).number, c.number) << row.name;
            // One of a variable that means nothing here says just that.
            EXPECT_EQ(warnings(p).size(), row.effect == OptionEffect::no_meaning) << row.name;
            if (!option_choice_by_word(row)) continue;
            const ParsedOptions word = parse({std::string(row.name) + "=" + std::string(c.text)});
            EXPECT_EQ(load_option(word.options, row.id).number, c.number) << row.name;
        }
    }
}

TEST(OptionTable, RowsAreSound) {
    std::set<std::string> names;
    for (const OptionRow& row : option_rows()) {
        SCOPED_TRACE(row.name);
        EXPECT_TRUE(names.insert(row.name).second);
        EXPECT_LE(row.min, row.max);
        EXPECT_STRNE(row.help, "");
        EXPECT_STRNE(row.known, "");
        EXPECT_EQ(row.kind == OptionKind::choice, row.choices[0] != '\0');
        if (counts(row.kind) && row.kind != OptionKind::uinteger_or_0)
            for (const int64_t d : {row.vma.number, row.ours.number}) {
                EXPECT_GE(d, row.min);
                EXPECT_LE(d, row.max);
            }
    }
    for (const OptionAlias& a : option_aliases())
        EXPECT_TRUE(names.insert(a.name).second) << a.name;
    for (const OptionGone& g : options_gone()) EXPECT_TRUE(names.insert(g.name).second) << g.name;
}

std::filesystem::path source_root() {
    return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path().parent_path();
}

// The variables users know against the registry and the document, in both directions.
TEST(OptionTable, KnowsEveryVariableOfVma) {
    std::set<std::string> known;
    for (const OptionRow& row : option_rows()) known.insert(row.name);
    for (const OptionAlias& a : option_aliases()) known.insert(a.name);
    for (const OptionGone& g : options_gone()) known.insert(g.name);
    std::ifstream document(source_root() / "docs/CONFIG.md");
    std::stringstream text;
    text << document.rdbuf();
    std::ifstream list(source_root() / "tests/unit/config/variables.txt");
    ASSERT_TRUE(list.good() && document.good());
    unsigned listed = 0;
    for (std::string name; std::getline(list, name);) {
        if (name.starts_with('#')) continue;
        ++listed;
        EXPECT_EQ(known.erase(name), 1u) << name;
        EXPECT_THAT(text.str(), HasSubstr("`" + name + "`"));
    }
    EXPECT_GT(listed, 130u);
    EXPECT_THAT(known, testing::IsEmpty());
}

}  // namespace
}  // namespace vma
