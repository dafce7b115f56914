// Interfaces and identity of a network namespace, and the lock of its hook creation: what the hook asks the kernel for
// itself, because a device layer knows no netlink monitor. Every call is about the calling thread's namespace.
#pragma once

#include <cstdint>
#include <vector>

#include "base/own_fd.h"
#include "base/result.h"

namespace vma {

struct InterfaceBrief {
    int ifindex = 0;
    unsigned type = 0;   // ARPHRD_*
    unsigned flags = 0;  // IFF_*
    bool up() const { return (flags & 1) != 0; }
    bool has_ethernet_header() const {
        return type == 1 || type == 772;
    }  // ARPHRD_ETHER, ARPHRD_LOOPBACK
};

// rtnetlink(7) RTM_GETLINK dump. Errors: of socket(2), sendto(2), recvfrom(2).
Result<std::vector<InterfaceBrief>> list_interfaces();

// SO_NETNS_COOKIE (Linux 5.14).
Result<uint64_t> namespace_cookie();

// A descriptor of the calling thread's namespace, or -errno.
int open_namespace();

// The calling thread is in another namespace while the object lives; nothing is done when it is there already. ok()
// false: setns(2) failed (CAP_SYS_ADMIN) and the thread is where it was.
class VisitNamespace {
  public:
    VisitNamespace(uint64_t cookie, int namespace_fd);
    ~VisitNamespace();
    VisitNamespace(const VisitNamespace&) = delete;
    VisitNamespace& operator=(const VisitNamespace&) = delete;
    bool ok() const { return ok_; }

  private:
    int home_ = -1;
    bool ok_ = false;
};

// Held while the object is in scope: an abstract unix address of the namespace, which the kernel gives back when the
// holder dies. Waits up to ten seconds: verifying the programs takes a tenth of one, on a machine with twenty
// processes to each core more than two.
class NamespaceLock {
  public:
    Status take();

  private:
    OwnFd socket_;
};

}  // namespace vma
