#include "base/high_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/resource.h>

#include "base/sys.h"

namespace vma {
namespace {

// The kernel's table of a process is as long as its highest descriptor and copied by every fork: with a soft limit of
// 2^30 three quarters of it would not even fit into memory. Above this number the quarter rule is not followed.
constexpr int kHighestBase = 49152;

int soft_limit() {
    rlimit limit{};
    if (sys::raw(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sys::ptr(&limit)) != 0) return 1024;
    return limit.rlim_cur > INT32_MAX ? INT32_MAX : int(limit.rlim_cur);
}

}  // namespace

int duplicate_high(int fd) {
    const int soft = soft_limit();
    int base = soft - soft / 4;
    if (base > kHighestBase) base = kHighestBase;
    const int candidates[] = {base, base / 3 * 2, base / 3, 3};
    int last = -EMFILE;
    for (int from : candidates) {
        const int copy = sys::fcntl(fd, F_DUPFD_CLOEXEC, from < 3 ? 3 : from);
        if (copy >= 0) return copy;
        last = copy;
        if (copy != -EMFILE && copy != -EINVAL) return copy;
    }
    return last == -EINVAL ? -EMFILE : last;
}

int raised(int fd) {
    const int high = fd >= 0 ? duplicate_high(fd) : -1;
    if (high < 0) return fd;
    sys::close(fd);
    return high;
}

}  // namespace vma
