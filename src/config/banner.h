// Banner: the lines a process prints when it starts to use the library, in the form VMA's users and scripts know. They
// are produced into a sink; nothing is printed here.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/options.h"

namespace vma {

// Receives one line without prefix and newline.
using LineSink = std::function<void(LogLevel, std::string_view)>;

inline constexpr const char kVersion[] = "10.0.0";
// "VMA_VERSION: 10.0.0-1 Release built on Nov 21 2026 11:00:00": in the binary as text, for strings(1).
const char* version_line();

// Observed by the caller; empty texts leave their line out.
struct BannerFacts {
    std::string command_line;  // argv joined by blanks
    std::string current_time;
    int pid = 0;
    std::string git;                         // commit, 40 hex digits
    std::string ofed_version;                // ofed_info -s
    std::string kernel, architecture, node;  // uname
};

// Rows that differ from our defaults at info, the others at details.
void print_banner(const Options&, const BannerFacts&, const LineSink&);
// One row, "Label   value   [VMA_NAME]"; false if the variable has no row.
bool banner_row(const Options&, Opt, std::string& line, LogLevel& level);

}  // namespace vma
