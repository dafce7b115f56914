// Why a process has no statistics page: for the viewer, which can look at a program that the library is not in.
#pragma once

#include <cstdint>
#include <string>

namespace vma::stats {

// One sentence about process `pid`: there is none; its program cannot be preloaded (statically linked, another machine or
// word size, secure execution) or is not; or it is and has made no socket yet.
std::string why_no_page(uint32_t pid);

}  // namespace vma::stats
