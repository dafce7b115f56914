// VMA_* variables as a program would find them, read as at its start.
#pragma once

#include <string>
#include <vector>

#include "config/options.h"

namespace vma {

inline ParsedOptions parse(const std::vector<std::string>& environment,
                           const ParseContext& context = {}) {
    std::vector<const char*> entries;
    for (const std::string& e : environment) entries.push_back(e.c_str());
    return parse_options(entries, context);
}
inline Options options(const std::vector<std::string>& environment) {
    return parse(environment).options;
}

}  // namespace vma
