#include "sock/unserved.h"

#include <cstdlib>

#include "base/log.h"
#include "engine/runtime.h"

namespace vma::sock {
namespace {

// Values of VMA_EXCEPTION_HANDLING; less than 0: stay.
enum : int { kHandBack, kHandBackLoudly, kRefuse, kAbort };

}  // namespace

Unserved unserved() {
    const Options& options = Runtime::options();
    if (!options.is_set(Opt::exception_handling)) return Unserved::hand_back;
    if (options.exception_handling < kHandBack) return Unserved::stay;
    return options.exception_handling < kRefuse ? Unserved::hand_back : Unserved::refuse;
}

void tell_unserved(int fd, std::string_view what) {
    const Options& options = Runtime::options();
    const Unserved mode = unserved();
    const char* const then = mode == Unserved::hand_back ? "the socket is handed back"
                             : mode == Unserved::stay    ? "the socket stays, without it"
                                                         : "refused (VMA_EXCEPTION_HANDLING)";
    if (!options.is_set(Opt::exception_handling))
        vma_log(info, "sock", "fd {}: {} is the kernel's: {}", fd, what, then);
    else if (options.exception_handling <= kHandBack)
        vma_log(debug, "sock", "fd {}: {} is the kernel's: {}", fd, what, then);
    else
        vma_log(error, "sock", "fd {}: {} is the kernel's: {}", fd, what, then);
    if (options.exception_handling == kAbort) std::abort();  // what the user has asked for
}

bool refuse_unserved(Socket& socket, int fd, std::string_view what) {
    tell_unserved(fd, what);
    if (unserved() == Unserved::hand_back) (void)socket.hand_back(Reason::unsupported_option);
    return unserved() == Unserved::refuse;
}

}  // namespace vma::sock
