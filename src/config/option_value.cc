#include "config/option_value.h"

#include <arpa/inet.h>

namespace vma {
namespace {

template <class T>
void store(T& field, const OptionValue& v) {
    if constexpr (std::is_same_v<T, std::string>)
        field = v.text;
    else if constexpr (std::is_same_v<T, IpAddr>)
        field = v.address;
    else
        field = static_cast<T>(v.number);
}

template <class T>
OptionValue load(const T& field) {
    OptionValue v;
    if constexpr (std::is_same_v<T, std::string>)
        v.text = field;
    else if constexpr (std::is_same_v<T, IpAddr>)
        v.address = field;
    else
        v.number = static_cast<int64_t>(field);
    return v;
}

}  // namespace

void store_option(Options& o, Opt id, const OptionValue& v, Origin origin) {
    switch (id) {
#define OPTION(field, ...) \
    case Opt::field:       \
        store(o.field, v); \
        break;
#define OPTION_ALIAS(...)
#define OPTION_GONE(...)
#include "config/options.def"
#undef OPTION
#undef OPTION_ALIAS
#undef OPTION_GONE
        case Opt::count:
            return;
    }
    o.origins[unsigned(id)] = origin;
}

OptionValue load_option(const Options& o, Opt id) {
    switch (id) {
#define OPTION(field, ...) \
    case Opt::field:       \
        return load(o.field);
#define OPTION_ALIAS(...)
#define OPTION_GONE(...)
#include "config/options.def"
#undef OPTION
#undef OPTION_ALIAS
#undef OPTION_GONE
        case Opt::count:
            break;
    }
    return {};
}

OptionValue option_default_value(const OptionRow& row, bool vma) {
    // Never destroyed: exit handlers may still ask.
    static const Options& defaults = *new Options;
    OptionValue v = load_option(defaults, row.id);
    if (!vma) return v;  // level, spec and ipv4 have one default for both
    if (row.vma.text == nullptr)
        v.number = row.vma.number;
    else if (row.kind >= OptionKind::text && row.kind != OptionKind::ipv4)
        v.text = row.vma.text;
    return v;
}

std::string option_value_text(const Options& o, Opt id) {
    const OptionRow& row = option_row(id);
    const OptionValue v = load_option(o, id);
    switch (row.kind) {
        case OptionKind::level:
            return log_level_name(LogLevel(v.number));
        case OptionKind::spec:
            return spec_name(Spec(v.number));
        case OptionKind::text:
        case OptionKind::text_pid:
        case OptionKind::path:
        case OptionKind::path_pid:
        case OptionKind::cpuset:
            return v.text;
        case OptionKind::pointer:
            return v.number == 0 ? "" : fmt::format("{:#x}", uint64_t(v.number));
        case OptionKind::ipv4: {
            char text[INET_ADDRSTRLEN] = "";
            inet_ntop(AF_INET, v.address.bytes.data() + 12, text, sizeof(text));
            return text;
        }
        case OptionKind::choice:
            if (option_choice_by_word(row))
                for (const OptionChoice& c : option_choices(row))
                    if (c.number == v.number) return std::string(c.text);
            [[fallthrough]];
        default:
            return std::to_string(v.number);
    }
}

}  // namespace vma
