// Options: the VMA_* variables as one value, and the parser that makes it from an environment. Everything is expanded
// from options.def. Sources: the variable table in docs/CONFIG.md, VMA manual 6.6 and VMA 9.8.
//
// Thread rules: parse once, then share as a const value. No globals, no system calls, no exceptions of ours (allocation
// of std::string aside).
#pragma once

#include <array>
#include <bitset>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ip_addr.h"
#include "base/log.h"

namespace vma {

enum class OptionKind : uint8_t {
    boolean,        // a number, on if not 0
    integer,        // int
    uinteger,       // uint32_t
    uinteger_or_0,  // uint32_t: 0 or within the range
    power_of_two,   // uint32_t
    choice,         // int: one of the listed numbers, or their word
    level,          // LogLevel
    spec,           // Spec
    text,           // std::string
    text_pid,       // std::string, the first %d becomes the process id
    path,           // std::string; ignored in secure-execution mode, as the next two
    path_pid,       // std::string, with %d
    pointer,        // uintptr_t
    cpuset,         // std::string, valid for cpus_from_text
    ipv4,           // IpAddr
};

// VMA_SPEC profiles; the values are VMA's alias numbers where it has them.
enum class Spec : int {
    none = 0,
    ultra_latency = 10,
    latency = 15,
    lbm_29west = 29,
    wombat_fh = 554,
    mcd = 623,
    mcd_irq = 624,
    rti = 784,
    p7750 = 7750,
    multi_ring_latency = 10000,
    vma = 10001,  // every default as VMA has it
};
std::optional<Spec> spec_from_text(std::string_view);  // name or alias number, any case
const char* spec_name(Spec);                           // "ultra-latency": what VMA_SPEC takes
const char* spec_banner(Spec);                         // "Ultra Latency"

// One per field of Options, in options.def order.
enum class Opt : uint8_t {
#define OPTION(field, ...) field,
#define OPTION_ALIAS(...)
#define OPTION_GONE(...)
#include "config/options.def"
#undef OPTION
#undef OPTION_ALIAS
#undef OPTION_GONE
    count
};
inline constexpr unsigned kOptionCount = unsigned(Opt::count);

// Where a value comes from; a later one beats an earlier one.
enum class Origin : uint8_t { builtin, socketxtreme, spec, file, environment };

namespace option_detail {
template <OptionKind>
struct Field {
    using type = std::string;
    static type initial(const char* s) { return s; }
};
template <class T>
struct Number {
    using type = T;
    static constexpr type initial(int64_t v) { return T(v); }
};
template <>
struct Field<OptionKind::boolean> : Number<bool> {};
template <>
struct Field<OptionKind::integer> : Number<int> {};
template <>
struct Field<OptionKind::choice> : Number<int> {};
template <>
struct Field<OptionKind::uinteger> : Number<uint32_t> {};
template <>
struct Field<OptionKind::uinteger_or_0> : Number<uint32_t> {};
template <>
struct Field<OptionKind::power_of_two> : Number<uint32_t> {};
template <>
struct Field<OptionKind::pointer> : Number<uintptr_t> {};
template <>
struct Field<OptionKind::level> {
    using type = LogLevel;
    static constexpr type initial(const char*) { return LogLevel::info; }
};
template <>
struct Field<OptionKind::spec> {
    using type = Spec;
    static constexpr type initial(const char*) { return Spec::none; }
};
template <>
struct Field<OptionKind::ipv4> {
    using type = IpAddr;
    static constexpr type initial(const char*) { return IpAddr::any_v4(); }
};
}  // namespace option_detail

// The values in force. Default-constructed: nothing set. A field that was not set holds our default; where is_set()
// matters (an unset variable means Linux-like or adaptive behaviour) the row's `unset` text in options.def says so.
struct Options {
#define OPTION(field, NAME, kind, vma_default, ours, ...) \
    option_detail::Field<OptionKind::kind>::type field =  \
        option_detail::Field<OptionKind::kind>::initial(ours);
#define OPTION_ALIAS(...)
#define OPTION_GONE(...)
#include "config/options.def"
#undef OPTION
#undef OPTION_ALIAS
#undef OPTION_GONE
    // Buffers a socket takes at a time. No variable of their own: set by profiles and VMA_BUFFER_BATCHING_MODE.
    uint32_t tx_bufs_batch_udp = 8;
    uint32_t tx_bufs_batch_tcp = 16;
    uint32_t rx_bufs_batch = 64;
    bool offload_pipe = false;  // profiles 29west and wombat_fh

    std::array<Origin, kOptionCount> origins{};

    Origin origin(Opt o) const { return origins[unsigned(o)]; }
    // Set by the environment, a file or a profile: VMA's meaning of the value applies.
    bool is_set(Opt o) const { return origin(o) != Origin::builtin; }
    // Written down by the user for this very variable.
    bool is_given(Opt o) const { return origin(o) >= Origin::file; }

    bool operator==(const Options&) const = default;
};

// A row of options.def as data: for the banner, the documentation, viewers and tests.
struct OptionDefault {
    int64_t number = 0;
    const char* text = nullptr;  // null for the number kinds
    template <std::integral T>
    constexpr OptionDefault(T n) : number(int64_t(n)) {}
    constexpr OptionDefault(const char* t) : text(t) {}
};
enum class OutOfRange : uint8_t { clamp, fallback };
enum class OptionGroup : uint8_t {
    log,
    config,
    ring,
    tx,
    rx,
    iomux,
    thread,
    memory,
    tcp,
    hw,
    count
};
enum class OptionEffect : uint8_t { in_effect, no_meaning };
struct OptionRow {
    Opt id;
    const char* field;
    const char* name;  // with VMA_
    OptionKind kind;
    OptionDefault vma, ours;
    int64_t min, max;  // numbers; for text kinds max is the longest length
    OutOfRange outside;
    OptionGroup group;
    const char *unit, *label, *choices, *xlio, *known;
    OptionEffect effect;
    const char *unset, *help;
};
struct OptionAlias {
    const char* name;  // with VMA_
    Opt target;
    const char *known, *help;
};
struct OptionGone {
    const char *name, *known, *help;
};
std::span<const OptionRow> option_rows();  // kOptionCount, indexed by Opt
std::span<const OptionAlias> option_aliases();
std::span<const OptionGone> options_gone();
const OptionRow& option_row(Opt);
const char* option_group_name(OptionGroup);  // "Log and statistics"

// The choices of a row, split.
struct OptionChoice {
    int number;
    std::string_view text;
};
std::vector<OptionChoice> option_choices(const OptionRow&);
bool option_choice_by_word(const OptionRow&);  // a choice written "packet", not "4"
std::string option_range(
    const OptionRow&);  // "1..64", "0, 1 or 20", "0, 32..2044", "text up to 255 bytes"
std::string option_default_text(const OptionRow&,
                                bool vma);           // as one would write it in the environment
std::string option_value_text(const Options&, Opt);  // likewise, the value in force

// CPUs of VMA_INTERNAL_THREAD_AFFINITY's text. "-1" gives the empty set: leave the thread alone. nullopt: bad text, an
// empty mask, or a CPU above 1023.
inline constexpr unsigned kMaxCpus = 1024;
std::optional<std::bitset<kMaxCpus>> cpus_from_text(std::string_view);

// A line for the user about the configuration, to be logged at `level` once.
struct Note {
    LogLevel level;
    std::string text;
    bool operator==(const Note&) const = default;
};

struct ParsedOptions {
    Options options;
    std::vector<Note> notes;
};
struct ParseContext {
    int pid = 0;          // replaces %d
    bool secure = false;  // AT_SECURE: variables that name files or addresses are ignored
    LogLevel max_level = kMaxLogLevel;
};
// environment: "NAME=value" strings; null pointers and strings without '=' are skipped, the first of two equal names
// counts (getenv). from_file: what VMA_CONFIG_JSON's file says (option_file.h).
struct Setting;
ParsedOptions parse_options(std::span<const char* const> environment, const ParseContext&,
                            std::span<const Setting> from_file = {});
std::span<const char* const> environment_span(
    const char* const* environ);  // up to the null pointer; null: empty

// The valid VMA_* name nearest to an unknown one by edit distance.
const char* nearest_option_name(std::string_view);
// The word of `words` nearest to `text`; "" when there is none.
std::string nearest_word(std::string_view text, std::span<const std::string> words);

std::string options_help();      // what `vma_docgen help` prints
std::string options_markdown();  // docs/CONFIG.md
std::string options_schema();    // docs/libvma.schema.json

}  // namespace vma
