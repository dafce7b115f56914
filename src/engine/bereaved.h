// The other ends of TCP connections whose process is dead and which nobody carries on. The kernel resets such a peer when it sends,
// but one that only waits would wait for ever.
#pragma once

#include <map>
#include <span>

#include "base/own_fd.h"
#include "base/time.h"
#include "dev/ring.h"

namespace vma {

// Each peer is sent a SYN from the dead connection's address. A peer in a synchronized state answers with where it is (RFC 9293,
// 3.10.7.4; RFC 5961, 4.2), and the kernel, which knows nothing of the connection, resets what it is told of, with the sequence
// number that it names. So this harms nobody if the connection lives after all. Either of the three may be lost: the peer is
// asked again, until its answer to a SYN is that of one that has no such connection (RST, or SYN and ACK of a listener), at most kTries
// times, in twice the time each.
//
// Not thread safe. add() and turn() are for the namespace of the calling thread, which is to be always the same; without CAP_NET_RAW
// nobody is told.
class Bereaved {
  public:
    static constexpr unsigned kTries = 5;
    static constexpr Duration kFirstWait = Duration::seconds(1);
    static constexpr size_t kMost = 4096;  // of those who are beyond, each is told once

    Bereaved() = default;
    Bereaved(const Bereaved&) = delete;
    Bereaved& operator=(const Bereaved&) = delete;

    void add(std::span<const FlowKey> connections, Instant now);
    // Hears answers, and sends what is due. To be called twice a second or so unless empty().
    void turn(Instant now);
    bool empty() const { return waiting_.empty(); }

  private:
    struct Wait {
        Instant next;
        unsigned told = 0;
    };
    void tell(const FlowKey& connection);
    void hear();

    OwnFd raw_;  // both ways; open while somebody waits
    std::map<FlowKey, Wait> waiting_;
};

}  // namespace vma
