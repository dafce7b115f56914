// Any bytes as an environment (entries end in NUL; an entry's first byte, from 128 up, stands for a name and "="; the first
// byte of all chooses secure execution): no crash, every number within its row's range, one message per complaint, and the
// same input gives the same value. The whole banner costs more than all the rest, so only some inputs print it; the rows
// of the variables that the input sets are printed always.
#include <cstdlib>
#include <string>
#include <vector>

#include "config/banner.h"
#include "config/option_value.h"

using namespace vma;

static void require(bool ok) {
    if (!ok) std::abort();
}

static std::vector<std::string> names() {
    std::vector<std::string> out;
    for (const OptionAlias& a : option_aliases()) out.push_back(a.name);
    for (const OptionRow& row : option_rows()) out.push_back(row.name);
    return out;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const std::vector<std::string> kNames = names();
    if (size == 0) return 0;
    std::vector<std::string> entries(1);
    for (size_t i = 1; i < size; ++i) {
        if (data[i] == 0)
            entries.emplace_back();
        else if (entries.back().empty() && data[i] >= 128)
            entries.back() = kNames[(data[i] - 128u) % kNames.size()] + "=";
        else
            entries.back() += char(data[i]);
    }
    std::vector<const char*> pointers;
    for (const std::string& e : entries) pointers.push_back(e.c_str());
    ParseContext context;
    context.pid = 12345;
    context.secure = data[0] & 1;
    const ParsedOptions p = parse_options(pointers, context);
    require(p.options == parse_options(pointers, context).options);
    for (const OptionRow& row : option_rows()) {
        const OptionValue v = load_option(p.options, row.id);
        switch (row.kind) {
            case OptionKind::integer:
            case OptionKind::choice:
            case OptionKind::power_of_two:
            case OptionKind::level:
                require(v.number >= row.min && v.number <= row.max);
                break;
            case OptionKind::text:
            case OptionKind::text_pid:
            case OptionKind::path:
            case OptionKind::path_pid:
                require(int64_t(v.text.size()) <= row.max);
                break;
            case OptionKind::cpuset:
                require(cpus_from_text(v.text).has_value());
                break;
            default:
                break;
        }
        if (context.secure && (row.kind == OptionKind::path || row.kind == OptionKind::path_pid))
            require(v == option_default_value(row, false));
    }
    require(p.options.rx_poll != 0);
    require(p.options.tx_wre_batching >= 1 && p.options.rx_wre >= 2 * p.options.rx_wre_batching);
    for (const Note& n : p.notes) require(!n.text.empty());
    std::string line;
    LogLevel level{};
    for (const OptionRow& row : option_rows())
        if (p.options.is_set(row.id) && banner_row(p.options, row.id, line, level))
            require(line.find(row.name) != std::string::npos);
    if (size % 32 == 0)
        print_banner(p.options, {}, [](LogLevel, std::string_view l) { require(!l.empty()); });
    return 0;
}
