#include "base/sys.h"

namespace vma::sys {
namespace {
int raw_ppoll(pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* mask) {
    return ppoll(fds, n, timeout, mask);
}
}  // namespace
int (*blocking_ppoll)(pollfd*, nfds_t, const timespec*, const sigset_t*) = raw_ppoll;
}  // namespace vma::sys
