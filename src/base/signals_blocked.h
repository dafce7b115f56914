#pragma once

#include <signal.h>

#include <cstdint>

#include "base/sys.h"

namespace vma {

// While one lives, its thread takes no signal; afterwards its mask is what it was. Async-signal-safe, touches no errno.
// glibc keeps two signals to itself (cancellation, and setuid() in all threads); a thread that is to begin with this mask
// must leave them, or setuid() of the program waits for it for ever (nptl(7)).
class SignalsBlocked {
  public:
    enum class Libc { blocked, left };
    explicit SignalsBlocked(Libc libc = Libc::blocked) {
        constexpr uint64_t kLibc = (uint64_t{1} << 31) | (uint64_t{1} << 32);  // 32 and 33
        const uint64_t blocked = libc == Libc::left ? ~kLibc : ~uint64_t{0};
        sys::raw(SYS_rt_sigprocmask, SIG_BLOCK, sys::ptr(&blocked), sys::ptr(&before_),
                 sizeof before_);
    }
    ~SignalsBlocked() {
        sys::raw(SYS_rt_sigprocmask, SIG_SETMASK, sys::ptr(&before_), 0, sizeof before_);
    }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    uint64_t before_ = 0;
};

}  // namespace vma
