// What the life of the process (api.h, implemented in process.cc) means for the other calls. Any thread, no lock.
#pragma once

#include "base/reason.h"
#include "sock/handover.h"

namespace vma::sock {

// Why every new socket of this process stays with the kernel, or none.
Reason why_pass_through();

// Why a socket that this thread made now would be the kernel's from birth, or none (api.cc).
Reason born_kernel(int domain, int kind, int protocol);

// Under a system call filter: the connections that waited for the descriptor `listener` when it came, or null when there are
// none left. Nothing of ours is in the descriptor table then.
Handover* kept_after_filter(int listener);

}  // namespace vma::sock
