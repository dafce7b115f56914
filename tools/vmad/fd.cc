#include "vmad/fd.h"

#include "base/close_aside.h"
#include "base/sys.h"

namespace vmad {
namespace {

unsigned g_held_up = 0;
bool g_may_wait = false;

}  // namespace

Fd& Fd::operator=(Fd&& o) noexcept {
    if (this != &o) {
        reset();
        fd_ = o.fd_;
        of_client_ = o.of_client_;
        o.fd_ = -1;
    }
    return *this;
}

void Fd::reset() {
    if (fd_ < 0) return;
    if (of_client_ && !g_may_wait)
        vma::close_aside(fd_);
    else
        vma::sys::close(fd_);
    fd_ = -1;
}

void close_received(int fd) { g_held_up += !vma::close_within(fd, kPatienceMs); }

void may_wait() { g_may_wait = true; }

unsigned held_up() { return g_held_up; }

}  // namespace vmad
