// Reason: why a socket is on the kernel path. The code is in the statistics page, the text in every viewer (reasons.def).
#pragma once

#include <cstdint>

namespace vma {

enum class Reason : uint8_t {
#define REASON(name, meaning, advice) name,
#include "base/reasons.def"
#undef REASON
    count
};

const char* reason_name(Reason);
const char* reason_meaning(Reason);
const char* reason_advice(Reason);  // "" when there is nothing to do

}  // namespace vma
