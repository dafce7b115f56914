// LocalMembers: which multicast groups this host is in, and on which interfaces, as of the moment of the question: the kernel
// tells of every change in the call that makes it (RTNLGRP_IPV4_MCADDR), and a question first takes what was told.
// Threads: any. One object per network namespace; a forked child makes its own.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/netlink.h"

namespace vma {

class LocalMembers {
  public:
    // May a socket of this host be in `group` (host order) on that interface? True, too, when the kernel does not tell (Linux
    // before 6.15). One system call when nothing has changed. The first call is made in the namespace that it is about.
    bool possible(int ifindex, uint32_t group);

  private:
    enum class State : uint8_t { closed, open, silent };
    bool read_all();
    void take(const netlink::Message& message);

    std::mutex mutex_;
    State state_ = State::closed;
    netlink::Socket socket_;
    std::vector<uint64_t> members_;  // interface << 32 | group, ascending
};

}  // namespace vma
