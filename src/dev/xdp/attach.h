// XdpProgram: the xdp ring's program on one interface, loaded by the first ring there and shared with the rings of other processes
// of the namespace. A link holds it, which goes with the last process that has it; nothing is pinned.
// Thread rules: open() by one thread at a time per process.
#pragma once

#include <string>

#include "base/own_fd.h"
#include "base/result.h"
#include "dev/packet/hook.h"

namespace vma {

enum class XdpMode : uint8_t {
    automatic,  // the driver's where the interface is a device of hardware and can, else generic
    generic,    // the kernel's, in front of everything that the interface receives
    native,     // the driver's
};

// What the driver of an interface is like.
struct XdpDriver {
    std::string name;  // "" unknown
    bool has_hardware =
        true;  // or nobody knows; else a link inside the machine, whose frames may have unfinished checksums
    bool strips_vlan_tags = false;  // XDP programs do not see them then
    unsigned queues = 1;
};
XdpDriver xdp_driver_of(int ifindex);

class XdpProgram {
  public:
    // On the interface of the calling thread's namespace, with the tables of `hook`, which is the namespace's. Errors: EBUSY
    // (another XDP program is there), EPERM (CAP_SYS_ADMIN, without which nothing can be shared), those of bpf(2).
    Status open(const Hook& hook, int ifindex, XdpMode mode, std::string* why);
    bool generic() const { return generic_; }
    // The socket gets what is for the slot, until it is closed.
    Status give(uint32_t slot, int socket);
    void seal() { sockets_.reset(); }  // give() is over

  private:
    Status load(const Hook::FlowTables& tables, int ifindex, XdpMode mode, std::string* why);
    bool share(const Hook::FlowTables& tables, int ifindex);
    bool take_sockets(const Hook::FlowTables& tables, uint32_t program);

    OwnFd link_, sockets_;
    bool generic_ = false;
};

}  // namespace vma
