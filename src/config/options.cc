// The environment as Options: values, names, profiles, forced adjustments, in that order (spec of the precedence: built-in
// default, SOCKETXTREME presets, VMA_SPEC, file, explicit variable, adjustments).
#include "config/options.h"

#include <arpa/inet.h>
#include <strings.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "config/option_file.h"
#include "config/option_value.h"
#include "config/profiles.h"

namespace vma {
namespace {

constexpr size_t kShownValueMax = 80;  // bytes of a bad value that a message repeats

bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A decimal number as atoi reads it, but saturating, and telling what was wrong.
struct Number {
    int64_t value = 0;
    bool digits = false;
    bool junk = false;
};
Number number_from_text(std::string_view text) {
    Number n;
    size_t i = 0;
    while (i < text.size() && is_blank(text[i])) ++i;
    const bool negative = i < text.size() && text[i] == '-';
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    for (; i < text.size() && is_digit(text[i]); ++i) {
        n.digits = true;
        n.value = std::min<int64_t>(n.value * 10 + (text[i] - '0'), INT64_MAX / 16);
    }
    if (negative) n.value = -n.value;
    while (i < text.size() && is_blank(text[i])) ++i;
    n.junk = i < text.size();
    return n;
}

// What reading one value gave: a value to use or none, and what to complain of.
struct Reading {
    bool usable = false;
    OptionValue value;
    std::string complaint;  // "not a number"; empty: nothing wrong
};
Reading unusable(std::string complaint) { return {false, {}, std::move(complaint)}; }
Reading usable(OptionValue v, std::string complaint = "") {
    return {true, std::move(v), std::move(complaint)};
}

Reading read_number(const OptionRow& row, std::string_view text) {
    const Number n = number_from_text(text);
    if (row.kind == OptionKind::boolean) {
        // VMA reads any text as a number: words are 0 and off, numbers other than 0 on.
        if (!n.digits) return usable({0, {}}, "not a number, which means 0");
        if (n.junk) return usable({n.value != 0, {}}, "text after the number");
        if (n.value < 0 || n.value > 1) return usable({1, {}}, "out of range");
        return usable({n.value, {}});
    }
    if (!n.digits) return unusable("not a number");
    const bool zero_allowed = row.kind == OptionKind::uinteger_or_0 && n.value == 0;
    if (!zero_allowed && (n.value < row.min || n.value > row.max)) {
        if (row.outside == OutOfRange::fallback) return unusable("out of range");
        return usable({std::clamp(n.value, row.min, row.max), {}}, "out of range");
    }
    if (row.kind == OptionKind::power_of_two && !std::has_single_bit(uint64_t(n.value)))
        return unusable("not a power of two");
    return usable({n.value, {}}, n.junk ? "text after the number" : "");
}

bool same_word(std::string_view a, std::string_view b) {
    return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

Reading read_choice(const OptionRow& row, std::string_view text) {
    const auto choices = option_choices(row);
    for (const OptionChoice& c : choices)
        if (!c.text.empty() && c.text.front() != '(' && same_word(c.text, text))
            return usable({c.number, {}});
    const Number n = number_from_text(text);
    if (!n.digits) return unusable(option_choice_by_word(row) ? "no such value" : "not a number");
    for (const OptionChoice& c : choices)
        if (c.number == n.value)
            return usable({n.value, {}}, n.junk ? "text after the number" : "");
    return unusable("out of range");
}

Reading read_level(std::string_view text, LogLevel cap) {
    const auto level = log_level_from_text(text);
    if (!level) return unusable("no such level");
    if (*level > cap)
        return usable({int64_t(cap), {}},
                      fmt::format("this build stops at {}", log_level_name(cap)));
    return usable({int64_t(*level), {}});
}

Reading read_text(const OptionRow& row, std::string_view text, const ParseContext& context) {
    std::string value(text);
    if (row.kind == OptionKind::text_pid || row.kind == OptionKind::path_pid) {
        const size_t at = value.find("%d");
        if (at != std::string::npos) value.replace(at, 2, std::to_string(context.pid));
    }
    if (int64_t(value.size()) > row.max) return unusable("too long");
    return usable({0, std::move(value)});
}

Reading read_pointer(std::string_view text) {
    if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
    uint64_t v = 0;
    const auto r = std::from_chars(text.data(), text.data() + text.size(), v, 16);
    if (r.ec != std::errc{} || r.ptr != text.data() + text.size())
        return unusable("not an address");
    return usable({int64_t(v), {}});
}

Reading read_ipv4(std::string_view text) {
    in_addr in{};
    if (inet_pton(AF_INET, std::string(text).c_str(), &in) != 1)
        return unusable("not an IPv4 address");
    OptionValue v;
    v.address = IpAddr::v4_bytes(&in);
    return usable(v);
}

Reading read_value(const OptionRow& row, std::string_view text, const ParseContext& context) {
    switch (row.kind) {
        case OptionKind::boolean:
        case OptionKind::integer:
        case OptionKind::uinteger:
        case OptionKind::uinteger_or_0:
        case OptionKind::power_of_two:
            return read_number(row, text);
        case OptionKind::choice:
            return read_choice(row, text);
        case OptionKind::level:
            return read_level(text, context.max_level);
        case OptionKind::spec:
            if (const auto s = spec_from_text(text)) return usable({int64_t(*s), {}});
            return unusable("no such profile");
        case OptionKind::text:
        case OptionKind::text_pid:
        case OptionKind::path:
        case OptionKind::path_pid:
            return read_text(row, text, context);
        case OptionKind::pointer:
            return read_pointer(text);
        case OptionKind::cpuset:
            if (!cpus_from_text(text)) return unusable("no CPU set");
            return read_text(row, text, context);
        case OptionKind::ipv4:
            return read_ipv4(text);
    }
    return unusable("unknown kind");
}

int64_t nearest_power_of_two(int64_t value, const OptionRow& row) {
    const auto v = uint64_t(std::clamp(value, row.min, row.max));
    const uint64_t below = std::bit_floor(v), above = std::bit_ceil(v);
    return int64_t(v - below <= above - v ? below : above);
}

// The valid value nearest to a text that is none, as one would write it; "" where nearness means nothing.
std::string nearest_value(const OptionRow& row, std::string_view text) {
    const Number n = number_from_text(text);
    std::vector<std::string> words;
    switch (row.kind) {
        case OptionKind::integer:
        case OptionKind::uinteger:
            return n.digits ? std::to_string(std::clamp(n.value, row.min, row.max)) : "";
        case OptionKind::uinteger_or_0:
            if (!n.digits) return "";
            return std::to_string(n.value < row.min / 2 ? 0
                                                        : std::clamp(n.value, row.min, row.max));
        case OptionKind::power_of_two:
            return n.digits ? std::to_string(nearest_power_of_two(n.value, row)) : "";
        case OptionKind::choice: {
            const auto choices = option_choices(row);
            if (!n.digits) {
                if (!option_choice_by_word(row)) return "";
                for (const OptionChoice& c : choices) words.emplace_back(c.text);
                return nearest_word(text, words);
            }
            const OptionChoice* best = &choices.front();
            for (const OptionChoice& c : choices)
                if (std::abs(c.number - n.value) < std::abs(best->number - n.value)) best = &c;
            return std::to_string(best->number);
        }
        case OptionKind::level:
            for (int level = int(LogLevel::none); level <= int(LogLevel::all); ++level)
                words.emplace_back(log_level_name(LogLevel(level)));
            return nearest_word(text, words);
        case OptionKind::spec:
            for (const Spec s : {Spec::none, Spec::ultra_latency, Spec::latency, Spec::lbm_29west,
                                 Spec::wombat_fh, Spec::mcd, Spec::mcd_irq, Spec::rti, Spec::p7750,
                                 Spec::multi_ring_latency, Spec::vma})
                words.emplace_back(spec_name(s));
            return nearest_word(text, words);
        default:
            return "";
    }
}

// What a value in force is called in a message.
std::string in_force(const Options& o, Opt id) {
    const OptionRow& row = option_row(id);
    const std::string value = option_value_text(o, id);
    switch (o.origin(id)) {
        case Origin::builtin:
            return row.unset[0] != '\0' ? fmt::format("the default ({})", row.unset)
                                        : fmt::format("the default \"{}\"", value);
        case Origin::socketxtreme:
            return fmt::format("\"{}\" of VMA_SOCKETXTREME", value);
        case Origin::spec:
            return fmt::format("\"{}\" of VMA_SPEC={}", value, spec_name(o.spec));
        case Origin::file:
        case Origin::environment:
            break;
    }
    return fmt::format("\"{}\"", value);
}

// The text of each variable as found in the environment or the file.
struct Given {
    const char* value = nullptr;
    std::string name;  // the name it was given under
    Origin origin = Origin::environment;
};

class EnvironmentParser {
  public:
    EnvironmentParser(std::span<const char* const> environment, const ParseContext& context,
                      std::span<const Setting> from_file)
        : context_(context) {
        for (const char* entry : environment)
            if (entry != nullptr) sort_entry(entry);
        for (const Setting& setting : from_file) sort_setting(setting);
    }

    ParsedOptions run() {
        apply(Opt::spec);
        apply(Opt::socketxtreme);
        if (out_.options.socketxtreme) apply_socketxtreme(out_.options);
        apply_profile(out_.options, out_.options.spec);
        for (const OptionRow& row : option_rows())
            if (row.id != Opt::spec && row.id != Opt::socketxtreme) apply(row.id);
        adjust();
        secure_note();
        for (Note& n : late_notes_) out_.notes.push_back(std::move(n));
        return std::move(out_);
    }

  private:
    using Table = std::array<Given, kOptionCount>;

    template <class... Args>
    void note(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
        out_.notes.push_back({level, fmt::format(format, std::forward<Args>(args)...)});
    }
    template <class... Args>
    void late_note(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
        late_notes_.push_back({level, fmt::format(format, std::forward<Args>(args)...)});
    }

    static void keep_first(Given& slot, std::string_view name, const char* value) {
        if (slot.value == nullptr) slot = {value, std::string(name)};
    }

    void sort_entry(const char* entry) {
        const char* equals = std::strchr(entry, '=');
        if (equals == nullptr) return;
        const std::string_view name(entry, size_t(equals - entry));
        if (name.starts_with("VMA_")) sort_vma(name, equals + 1);
        if (name.starts_with("XLIO_")) sort_xlio(name, equals + 1);
    }

    void sort_vma(std::string_view name, const char* value) {
        for (const OptionRow& row : option_rows())
            if (name == row.name) return keep_first(direct_[unsigned(row.id)], name, value);
        for (const OptionAlias& a : option_aliases())
            if (name == a.name) {
                late_note(LogLevel::warning, "{} is deprecated, use {}", name,
                          option_row(a.target).name);
                return keep_first(alias_[unsigned(a.target)], name, value);
            }
        for (const OptionGone& g : options_gone())
            if (name == g.name)
                return late_note(LogLevel::warning, "{} has no effect: {}", name, g.help);
        late_note(LogLevel::warning, "{} is not a variable of this library; the nearest is {}",
                  name.substr(0, kShownValueMax), nearest_option_name(name));
    }

    void sort_setting(const Setting& s) {
        for (const OptionRow& row : option_rows()) {
            if (s.name != row.name) continue;
            if (row.id == Opt::config_json)
                return late_note(LogLevel::warning, "{}: {} is for the environment", s.place,
                                 s.name);
            if (!setting_fits(row, s.type))
                return late_note(LogLevel::warning, "{}: {}={}: expected {} ({}); it is not used",
                                 s.place, s.name,
                                 std::string_view(s.value).substr(0, kShownValueMax),
                                 setting_wanted(row), option_range(row));
            file_[unsigned(row.id)] = {s.value.c_str(), s.place + ": " + s.name, Origin::file};
            return;
        }
        late_note(LogLevel::warning, "{}: {} is not a variable of this library; the nearest is {}",
                  s.place, std::string_view(s.name).substr(0, kShownValueMax),
                  nearest_option_name(s.name));
    }

    void sort_xlio(std::string_view name, const char* value) {
        const std::string_view suffix = name.substr(5);
        for (const OptionRow& row : option_rows()) {
            if (row.xlio[0] != '\0' && suffix == row.xlio) {
                late_note(LogLevel::details, "{} is taken as {}", name, row.name);
                return keep_first(xlio_[unsigned(row.id)], name, value);
            }
        }
        for (const OptionRow& row : option_rows())
            if (suffix == row.name + 4)
                return late_note(LogLevel::warning,
                                 "{} is ignored: {} has another meaning; range {}", name, row.name,
                                 option_range(row));
        late_note(LogLevel::warning, "{} is ignored: it has no counterpart here",
                  name.substr(0, kShownValueMax));
    }

    void apply(Opt id) {
        const unsigned i = unsigned(id);
        const Table* const sources[] = {&direct_, &alias_, &xlio_, &file_};
        const auto found =
            std::ranges::find_if(sources, [i](const Table* t) { return (*t)[i].value != nullptr; });
        if (found == std::end(sources)) return;
        const Given& given = (**found)[i];
        const OptionRow& row = option_row(id);
        if (context_.secure && (row.kind == OptionKind::path || row.kind == OptionKind::path_pid ||
                                row.kind == OptionKind::pointer)) {
            ignored_secure_ += (ignored_secure_.empty() ? "" : ", ") + given.name;
            return;
        }
        const std::string_view text = given.value;
        Reading r = read_value(row, text, context_);
        if (r.usable) store_option(out_.options, id, r.value, given.origin);
        if (!r.complaint.empty()) {
            std::string nearest = r.usable ? "" : nearest_value(row, text);
            if (!nearest.empty()) nearest = " (nearest: " + nearest + ")";
            note(LogLevel::warning, "{}=\"{}\": {}; expected {}{}; using {}", given.name,
                 text.substr(0, kShownValueMax), r.complaint, option_range(row), nearest,
                 in_force(out_.options, id));
        }
        if (row.effect == OptionEffect::no_meaning)
            note(LogLevel::warning, "{} has no effect: {}", given.name, row.help);
    }

    // Sets a field to what another one demands. A value that the user gave is not changed without a word.
    void force(Opt id, int64_t number, const char* why,
               LogLevel level_if_given = LogLevel::warning) {
        OptionValue v = load_option(out_.options, id);
        if (v.number == number) return;
        const bool given = out_.options.is_given(id);
        note(given ? level_if_given : LogLevel::debug, "{}={}: {}; using {}", option_row(id).name,
             v.number, why, number);
        v.number = number;
        store_option(out_.options, id, v, out_.options.origin(id));
    }

    void adjust();

    void secure_note() {
        if (!ignored_secure_.empty())
            note(LogLevel::warning, "secure execution (set-user-id or capabilities): ignored {}",
                 ignored_secure_);
    }

    const ParseContext context_;
    Table direct_, alias_, xlio_, file_;
    std::string ignored_secure_;
    ParsedOptions out_;
    std::vector<Note> late_notes_;  // about names rather than values; after those
};

// Most send requests a queue pair can have: the work queue holds 2 * 16 * 1024 blocks of 64 bytes, and a request takes its
// inline data with 12 bytes of overhead, rounded up to whole blocks.
int64_t tx_wre_cap(int64_t max_inline) {
    const auto blocks = [](int64_t n) { return (n + 63) / 64 * 64; };
    return int64_t(2) * 16 * 1024 * 64 / blocks(blocks(std::max<int64_t>(max_inline - 12, 1)) + 12);
}

void EnvironmentParser::adjust() {
    Options& o = out_.options;
    if (o.socketxtreme)
        force(Opt::progress_engine_interval, 0, "VMA_SOCKETXTREME needs it off", LogLevel::debug);
    if (o.rx_poll == 0) force(Opt::rx_poll, 1, "0 counts as 1", LogLevel::debug);
    if (o.buffer_batching_mode == 0)
        o.tx_bufs_batch_udp = o.tx_bufs_batch_tcp = o.rx_bufs_batch = 1;
    if (o.select_poll_os_force != 0) {
        note(LogLevel::warning,
             "VMA_SELECT_POLL_OS_FORCE is deprecated, use VMA_SELECT_POLL_OS_RATIO=1 and "
             "VMA_SELECT_SKIP_OS=1");
        force(Opt::select_poll_os_ratio, 1, "VMA_SELECT_POLL_OS_FORCE is set");
        force(Opt::select_skip_os, 1, "VMA_SELECT_POLL_OS_FORCE is set");
        for (const Opt id : {Opt::select_poll_os_ratio, Opt::select_skip_os})
            o.origins[unsigned(id)] = o.origin(Opt::select_poll_os_force);
    }

    const int64_t tx_least = 2 * int64_t(o.tx_wre_batching);
    if (o.tx_wre < tx_least) force(Opt::tx_wre, tx_least, "less than twice VMA_TX_WRE_BATCHING");
    if (o.tx_wre > tx_wre_cap(o.tx_max_inline))
        force(Opt::tx_wre, tx_wre_cap(o.tx_max_inline),
              "more than VMA_TX_MAX_INLINE leaves room for");
    const int64_t rx_least = 2 * int64_t(o.rx_wre_batching);
    if (o.rx_wre < rx_least) force(Opt::rx_wre, rx_least, "less than twice VMA_RX_WRE_BATCHING");
    if (o.qp_compensation_level < o.rx_wre_batching)
        force(Opt::qp_compensation_level, o.rx_wre_batching, "less than VMA_RX_WRE_BATCHING");

    if ((o.rx_poll < 0 || o.select_poll < 0) && !o.is_given(Opt::cq_moderation_enable))
        force(Opt::cq_moderation_enable, 0, "polling for ever takes no interrupts");
    if (!o.cq_moderation_enable)
        force(Opt::cq_aim_interval_msec, 0, "interrupt moderation is off", LogLevel::debug);
    if (o.cq_moderation_count > o.rx_wre / 2)
        force(Opt::cq_moderation_count, o.rx_wre / 2, "more than half of VMA_RX_WRE");
    if (o.cq_aim_max_count > o.rx_wre / 2)
        force(Opt::cq_aim_max_count, o.rx_wre / 2, "more than half of VMA_RX_WRE");

    // Unset means no tick at all, so only a tick that was asked for can be too fine.
    if (o.is_set(Opt::tcp_timer_resolution_msec) &&
        o.tcp_timer_resolution_msec < o.timer_resolution_msec)
        force(Opt::tcp_timer_resolution_msec, o.timer_resolution_msec,
              "less than VMA_TIMER_RESOLUTION_MSEC");
    if (!o.is_set(Opt::log_details) && o.tracelevel >= LogLevel::debug) o.log_details = 2;
}

bool read_mask(std::string_view hex, std::bitset<kMaxCpus>& cpus) {
    if (hex.empty()) return false;
    for (size_t i = 0; i < hex.size(); ++i) {
        const char c = hex[hex.size() - 1 - i];
        const int digit = is_digit(c)                              ? c - '0'
                          : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                   : -1;
        if (digit < 0) return false;
        for (unsigned bit = 0; bit < 4; ++bit) {
            if ((digit >> bit & 1) == 0) continue;
            if (i * 4 + bit >= kMaxCpus) return false;
            cpus.set(i * 4 + bit);
        }
    }
    return true;
}

bool read_cpu(std::string_view text, unsigned& cpu) {
    const auto r = std::from_chars(text.data(), text.data() + text.size(), cpu);
    return r.ec == std::errc{} && r.ptr == text.data() + text.size() && cpu < kMaxCpus;
}

}  // namespace

std::optional<std::bitset<kMaxCpus>> cpus_from_text(std::string_view text) {
    std::bitset<kMaxCpus> cpus;
    if (text == "-1") return cpus;
    if (text.starts_with("0x") || text.starts_with("0X")) {
        if (!read_mask(text.substr(2), cpus) || cpus.none()) return std::nullopt;
        return cpus;
    }
    for (std::string_view rest = text;;) {
        const size_t comma = std::min(rest.find(','), rest.size());
        const std::string_view item = rest.substr(0, comma);
        const size_t dash = std::min(item.find('-'), item.size());
        unsigned first = 0, last = 0;
        if (!read_cpu(item.substr(0, dash), first)) return std::nullopt;
        last = first;
        if (dash < item.size() && (!read_cpu(item.substr(dash + 1), last) || last < first))
            return std::nullopt;
        for (unsigned c = first; c <= last; ++c) cpus.set(c);
        if (comma == rest.size()) return cpus;
        rest.remove_prefix(comma + 1);
    }
}

ParsedOptions parse_options(std::span<const char* const> environment, const ParseContext& context,
                            std::span<const Setting> from_file) {
    return EnvironmentParser(environment, context, from_file).run();
}

std::span<const char* const> environment_span(const char* const* environ_array) {
    if (environ_array == nullptr) return {};
    size_t n = 0;
    while (environ_array[n] != nullptr) ++n;
    return {environ_array, n};
}

}  // namespace vma
