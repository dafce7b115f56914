// Settings out of a JSON file: whatever it says, an error leaves nothing of it, and what it leaves is parsed like the environment.
#include "config/option_file.h"
#include "fuzz/fuzz_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace vma;
    const OptionFile file = read_option_file({reinterpret_cast<const char*>(data), size}, "f");
    FUZZ_CHECK(file.notes.empty() || file.settings.empty());
    for (const Setting& s : file.settings) FUZZ_CHECK(s.place.starts_with("f:"));
    const ParsedOptions p = parse_options({}, {}, file.settings);
    for (const OptionRow& row : option_rows())
        FUZZ_CHECK(p.options.origin(row.id) != Origin::environment);
    for (const Note& n : p.notes) FUZZ_CHECK(!n.text.empty());
    return 0;
}
