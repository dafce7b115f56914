// Any bytes as an environment (entries end in NUL; the first byte chooses secure execution): no crash, every number within
// its row's range, one message per complaint, and the same input gives the same value.
#include <cstdlib>
#include <string>
#include <vector>

#include "config/banner.h"
#include "config/option_value.h"

using namespace vma;

static void require(bool ok) {
    if (!ok) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    std::vector<std::string> entries(1);
    for (size_t i = 1; i < size; ++i) {
        if (data[i] == 0)
            entries.emplace_back();
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
    print_banner(p.options, {}, [](LogLevel, std::string_view line) { require(!line.empty()); });
    return 0;
}
