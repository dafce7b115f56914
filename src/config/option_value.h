// Reading and writing a field of Options by its Opt, for code that walks the table. Private to src/config and its tests.
#pragma once

#include <string>
#include <type_traits>

#include "config/options.h"

namespace vma {

// The value of any field: text for the text kinds, address for ipv4, number for all others (enums by their number).
struct OptionValue {
    int64_t number = 0;
    std::string text;
    IpAddr address = IpAddr::any_v4();
    bool operator==(const OptionValue&) const = default;
};

void store_option(Options&, Opt, const OptionValue&, Origin);
OptionValue load_option(const Options&, Opt);
OptionValue option_default_value(const OptionRow&, bool vma);

}  // namespace vma
