// What programs ask of rings (SO_VMA_RING_ALLOC_LOGIC, ring profiles).
#pragma once

#include "sock/using.h"

namespace vma::extra {

sock::Outcome set_ring_logic(const sock::Using& object, const void* value, socklen_t len);

}  // namespace vma::extra
