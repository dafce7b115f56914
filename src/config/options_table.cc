// The rows of options.def as data, and what follows from a row alone: its range, its choices, its default as text.
#include <strings.h>

#include <algorithm>
#include <cstring>

#include "config/options.h"

namespace vma {
namespace {

constexpr OptionRow kRows[] = {
#define OPTION(field, NAME, kind, vma_default, ours, min, max, outside, group, unit, label, \
               choices, xlio, known, effect, unset, help)                                   \
    {Opt::field,                                                                            \
     #field,                                                                                \
     "VMA_" #NAME,                                                                          \
     OptionKind::kind,                                                                      \
     OptionDefault(vma_default),                                                            \
     OptionDefault(ours),                                                                   \
     int64_t(min),                                                                          \
     int64_t(max),                                                                          \
     OutOfRange::outside,                                                                   \
     OptionGroup::group,                                                                    \
     unit,                                                                                  \
     label,                                                                                 \
     choices,                                                                               \
     xlio,                                                                                  \
     known,                                                                                 \
     OptionEffect::effect,                                                                  \
     unset,                                                                                 \
     help},
#define OPTION_ALIAS(...)
#define OPTION_GONE(...)
#include "config/options.def"
#undef OPTION
#undef OPTION_ALIAS
#undef OPTION_GONE
};
static_assert(std::size(kRows) == kOptionCount);

constexpr OptionAlias kAliases[] = {
#define OPTION(...)
#define OPTION_ALIAS(NAME, field, known, help) {"VMA_" #NAME, Opt::field, known, help},
#define OPTION_GONE(...)
#include "config/options.def"
#undef OPTION
#undef OPTION_ALIAS
#undef OPTION_GONE
};

constexpr OptionGone kGone[] = {
#define OPTION(...)
#define OPTION_ALIAS(...)
#define OPTION_GONE(NAME, known, help) {"VMA_" #NAME, known, help},
#include "config/options.def"
#undef OPTION
#undef OPTION_ALIAS
#undef OPTION_GONE
};

constexpr const char* kGroupNames[] = {
    "Log and statistics",
    "Process and rules",
    "Rings",
    "Sending",
    "Receiving",
    "Multiplexed waiting",
    "Threads and timers",
    "Memory",
    "Protocols and network",
    "Hardware",
};
static_assert(std::size(kGroupNames) == unsigned(OptionGroup::count));

constexpr struct {
    Spec spec;
    const char *name, *banner;
} kSpecs[] = {
    {Spec::none, "none", "None"},
    {Spec::ultra_latency, "ultra-latency", "Ultra Latency"},
    {Spec::latency, "latency", "Latency"},
    {Spec::lbm_29west, "29west", "29West LBM Logic"},
    {Spec::wombat_fh, "wombat_fh", "Wombat FH LBM Logic"},
    {Spec::mcd, "mcd", "Memcached Logic"},
    {Spec::mcd_irq, "mcd-irq", "Memcached Interrupt Mode"},
    {Spec::rti, "rti", "RTI Logic"},
    {Spec::p7750, "7750", "7750 Low Latency Profile"},
    {Spec::multi_ring_latency, "multi_ring_latency", "Multi Ring Latency Profile"},
    {Spec::vma, "vma", "VMA defaults"},
};

bool same_word(std::string_view a, std::string_view b) {
    return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// Levenshtein distances of one text from others, without regard to case: a column of the matrix is a pair of bit vectors
// (G. Myers 1999, in H. Hyyro's form), so a distance costs one step per byte of the other text.
class EditDistance {
  public:
    static constexpr size_t kMax = 64;  // bytes of the text that count

    explicit EditDistance(std::string_view text) : length_(unsigned(std::min(text.size(), kMax))) {
        for (unsigned i = 0; i < length_; ++i) where_[folded(text[i])] |= uint64_t(1) << i;
    }

    unsigned from(std::string_view other) const {
        if (length_ == 0) return unsigned(other.size());
        const uint64_t last = uint64_t(1) << (length_ - 1);
        uint64_t up = ~uint64_t(0),
                 down = 0;  // rows that are one more, one less than the row above
        unsigned distance = length_;
        for (const char c : other) {
            const uint64_t equal = where_[folded(c)];
            const uint64_t vertical = equal | down;
            const uint64_t horizontal = (((equal & up) + up) ^ up) | equal;
            uint64_t more = down | ~(horizontal | up), less = up & horizontal;
            distance += (more & last) != 0;
            distance -= (less & last) != 0;
            more = more << 1 | 1;
            less <<= 1;
            up = less | ~(vertical | more);
            down = more & vertical;
        }
        return distance;
    }

  private:
    static uint8_t folded(char c) { return uint8_t(c >= 'A' && c <= 'Z' ? c | 0x20 : c); }
    const unsigned length_;
    uint64_t where_[256] = {};  // bit i: byte i of the text is this one
};

std::string join_or(const std::vector<std::string>& items) {
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) {
        if (i != 0) out += i + 1 == items.size() ? " or " : ", ";
        out += items[i];
    }
    return out;
}

}  // namespace

std::span<const OptionRow> option_rows() { return kRows; }
std::span<const OptionAlias> option_aliases() { return kAliases; }
std::span<const OptionGone> options_gone() { return kGone; }
const OptionRow& option_row(Opt o) { return kRows[unsigned(o)]; }
const char* option_group_name(OptionGroup g) { return kGroupNames[unsigned(g)]; }

std::optional<Spec> spec_from_text(std::string_view text) {
    for (const auto& s : kSpecs) {
        if (same_word(text, s.name)) return s.spec;
        // The numbers above 9999 are ours and no spelling.
        if (int(s.spec) < 10000 && text == std::to_string(int(s.spec))) return s.spec;
    }
    return std::nullopt;
}
const char* spec_name(Spec spec) {
    for (const auto& s : kSpecs)
        if (s.spec == spec) return s.name;
    return "?";
}
const char* spec_banner(Spec spec) {
    for (const auto& s : kSpecs)
        if (s.spec == spec) return s.banner;
    return "?";
}

std::vector<OptionChoice> option_choices(const OptionRow& row) {
    std::vector<OptionChoice> out;
    std::string_view rest = row.choices;
    while (!rest.empty()) {
        const size_t end = size_t(std::find(rest.begin(), rest.end(), '|') - rest.begin());
        const std::string_view item = rest.substr(0, end);
        const size_t blank = item.find(' ');
        out.push_back({std::atoi(item.data()), item.substr(blank + 1)});
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return out;
}

// A choice whose values are single lower-case words is written by its words.
bool option_choice_by_word(const OptionRow& row) {
    if (row.kind != OptionKind::choice) return false;
    for (const OptionChoice& c : option_choices(row))
        for (const char ch : c.text)
            if (!(ch >= 'a' && ch <= 'z') && !(ch >= '0' && ch <= '9')) return false;
    return true;
}

std::string option_range(const OptionRow& row) {
    const std::string span = std::to_string(row.min) + ".." + std::to_string(row.max);
    std::vector<std::string> items;
    switch (row.kind) {
        case OptionKind::boolean:
            return "0 or 1";
        case OptionKind::integer:
        case OptionKind::uinteger:
            return span;
        case OptionKind::uinteger_or_0:
            return "0 or " + span;
        case OptionKind::power_of_two:
            return "a power of two, " + span;
        case OptionKind::choice:
            for (const OptionChoice& c : option_choices(row))
                items.push_back(option_choice_by_word(row) ? std::string(c.text)
                                                           : std::to_string(c.number));
            return join_or(items);
        case OptionKind::level:
            return "none, panic, error, warn, info, details, debug, fine, finer, all or 0..6";
        case OptionKind::spec:
            for (const auto& s : kSpecs) {
                std::string item = s.name;
                if (int(s.spec) < 10000 && item != std::to_string(int(s.spec)))
                    item += " (" + std::to_string(int(s.spec)) + ")";
                items.push_back(item);
            }
            return join_or(items);
        case OptionKind::text:
        case OptionKind::text_pid:
            return "text up to " + std::to_string(row.max) + " bytes";
        case OptionKind::path:
        case OptionKind::path_pid:
            return "a path up to " + std::to_string(row.max) + " bytes";
        case OptionKind::pointer:
            return "an address, 0x...";
        case OptionKind::cpuset:
            return "-1, a mask 0x... or a list such as 0,2-3, CPUs 0..1023";
        case OptionKind::ipv4:
            return "an IPv4 address";
    }
    return "";
}

std::string option_default_text(const OptionRow& row, bool vma) {
    const OptionDefault& d = vma ? row.vma : row.ours;
    if (d.text != nullptr) return d.text;
    if (row.kind == OptionKind::pointer && d.number == 0) return "";
    if (option_choice_by_word(row))
        for (const OptionChoice& c : option_choices(row))
            if (c.number == d.number) return std::string(c.text);
    return std::to_string(d.number);
}

std::string nearest_word(std::string_view text, std::span<const std::string> words) {
    const EditDistance given(text);
    std::string best;
    unsigned least = ~0u;
    for (const std::string& word : words) {
        const unsigned d = given.from(word);
        if (d >= least) continue;
        least = d;
        best = word;
    }
    return best;
}

const char* nearest_option_name(std::string_view name) {
    const EditDistance name_given(name);
    const char* best = kRows[0].name;
    unsigned least = ~0u;
    for (const OptionRow& row : kRows) {
        const unsigned d = name_given.from(row.name);
        if (d < least) {
            least = d;
            best = row.name;
        }
    }
    return best;
}

}  // namespace vma
