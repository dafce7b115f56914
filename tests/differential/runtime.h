// What runtime.cc and runtime_waits.cc, the body of behaviour.h, share.
#pragma once

#include <string>

#include "differential/behaviour.h"

namespace behave {

inline constexpr int kLimit = 5000;  // ms, of each wait

[[noreturn]] void give_up(const std::string& why);
std::string error_text();  // the name of errno

}  // namespace behave
