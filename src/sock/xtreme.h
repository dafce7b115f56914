// SocketXtreme (extra API, VMA_SOCKETXTREME=1): a program polls a ring and gets what has come to all sockets of that ring:
// packets, which stay its own until it gives them back, connections that are accepted for it, and changes of readiness.
//
// Each socket has a turn, which waits in the queue of its ring while there is something to tell. A socket has one ring in this
// mode; what its other rings have for it (an address of all interfaces) is told by polling that one.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "base/ip_addr.h"
#include "base/list.h"
#include "engine/kept.h"

namespace vma {
class Shard;
}
namespace vma::sock {

class Socket;
struct XtremeQueue;

// One result of a poll.
struct Completion {
    PacketPiece* pieces = nullptr;  // of a packet
    uint32_t pieces_count = 0, bytes = 0;
    int64_t hw_time_ns = 0;  // of its first piece; 0: not known
    uint32_t events = 0;     // EPOLL*
    int accepted = -1;       // a new connection
    Endpoint peer;           // of the packet or the connection
};

// Where a poll puts its results.
class Completions {
  public:
    virtual bool room() const = 0;
    virtual void put(const Socket& socket, const Completion& completion) = 0;

  protected:
    ~Completions() = default;
};

class XtremeTurn {
  public:
    // `events` (EPOLL*, or Watch::kAny) became so. Any thread; locks may be held.
    void changed(uint32_t events);
    // In a child no ring of the parent's is polled.
    void forget_in_child() {
        new (&hook) ListHook;
        queue_.store(nullptr, std::memory_order_relaxed);
        changed_.store(0, std::memory_order_relaxed);
    }

    Socket* socket = nullptr;
    ListHook hook;  // in the queue

  private:
    friend class Xtreme;
    // A change of state, in the place of an EPOLL* bit that no readiness has.
    static constexpr uint32_t kState = 1u << 31;
    std::atomic<XtremeQueue*> queue_{nullptr};  // of its ring; null: none yet
    std::atomic<uint32_t> changed_{0};          // since the last poll
    std::atomic<uint32_t> level_{0};            // EPOLL* that the last poll saw
};

class Xtreme {
  public:
    static bool on();  // VMA_SOCKETXTREME
    // `shard` receives for the socket: the first that does is its ring. `more`: others do, too.
    static void settle(Socket& socket, Shard& shard, bool more = false);
    static void remove(Socket& socket);  // it is being destroyed
    // Takes what there is to tell at the ring with this doorbell. False: there is no such ring.
    static bool poll(int ring_fd, Completions& out);
    static void forget_in_child();

  private:
    static void serve(XtremeQueue& queue, Completions& out);
    static bool tell(Socket& socket, Completions& out);
};

// The pieces that the program has of packets. How often it still has to give this one back, or -ENOENT: it has none of it.
int hold_piece(const PacketPiece* piece);
int give_piece_back(const PacketPiece* piece,
                    const PacketPiece** next = nullptr);  // `next` as it stood in it

}  // namespace vma::sock
