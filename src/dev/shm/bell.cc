#include "dev/shm/bell.h"

#include <linux/ioctl.h>
#include <sys/timerfd.h>

#include <cerrno>
#include <cstdint>

#include "base/high_fd.h"
#include "base/sys.h"

#ifndef TFD_IOC_SET_TICKS
#define TFD_IOC_SET_TICKS _IOW('T', 0, uint64_t)
#endif

namespace vma::shm {

Result<int> create_bell() {
    const int fd = int(sys::raw(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (fd < 0) return Errno{-fd};
    return raised(fd);
}

Status BorrowedBell::adopt(int fd) {
    // Only a timer answers this. An ioctl on some other file could do anything, and wait for whoever is behind it.
    itimerspec setting;
    if (sys::raw(SYS_timerfd_gettime, fd, sys::ptr(&setting)) < 0) {
        if (fd >= 0) sys::close(fd);
        return Errno{EINVAL};
    }
    return fd_.adopt(fd);
}

void BorrowedBell::ring() {
    const uint64_t ticks = 1;
    if (!by_time_) {
        const int r = sys::ioctl(fd_.fd(), TFD_IOC_SET_TICKS, const_cast<uint64_t*>(&ticks));
        if (r != -ENOTTY) return;
        by_time_ = true;
    }
    const itimerspec at_once{{0, 0}, {0, 1}};
    sys::raw(SYS_timerfd_settime, fd_.fd(), 0, sys::ptr(&at_once), 0);
}

}  // namespace vma::shm
