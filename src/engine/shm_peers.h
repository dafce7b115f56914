// Processes of this host that share memory with this one (docs/decisions/0012-shm-ring.md): how they find each other, the
// channel between each two, and what the kernel says about who owns a connection.
//
// A process publishes a port by listening on an abstract unix socket, \0vma.shm.<version>.tcp.<port>.<slot>: the kernel is the
// registry, per network namespace, and forgets the name with the process. A port has as many names as processes accept on it.
// Neighbours in other namespaces are found by the broker of the host, if its policy says so (engine/shm_abroad.h).
//
// Threads: turn(), search(), search_abroad(), owns(), show() and prove() are the internal thread's; the rest is any thread's. The sink is called on the internal
// thread, with no lock held.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/time.h"
#include "engine/shard.h"
#include "stack/demux.h"

namespace vma {

// Names one neighbour and its channel; never used again for another. 0: none.
using ShmPeerId = uint64_t;

// What is said over a channel after the handshake. A connection moves into the ring by offer, accept, commit, go, and out of
// it when both sides have said back (sock/tcp_cross.cc).
enum class ShmWord : uint32_t {
    offer = 1,  // a connection that the sender has opened: shall it go by memory?
    refuse,     // of an offer, or of an accept: it stays with the kernel
    accept,     // the sender writes nothing to the kernel any more
    commit,     // neither does this one, and it is in the ring
    go,         // so is the other
    back,  // the sender has left the ring; what its program had not read comes along as a memfd
};

struct ShmMessage {
    static constexpr uint64_t kMagic = 0x564d41'70656572ull;
    static constexpr uint32_t kGone = 1;  // back: there is nothing left here that could move
    uint64_t magic = kMagic;
    ShmWord word{};
    uint32_t flags = 0;
    uint32_t from_addr = 0, to_addr = 0;  // the sender's end and the other, host order
    uint16_t from_port = 0, to_port = 0;
    // accept, commit: number of the first byte that the sender sends here; back: of the next that it expects.
    uint32_t seq = 0;
    uint32_t window = 0;  // accept, commit: bytes that it takes
    uint32_t unread = 0;  // back: bytes in the memory
    uint32_t text =
        0;  // commit, go: the sender's tag for text past the segments, 0: none (dev/text_lane.h)
    uint64_t written = 0;  // accept, commit: bytes that went by the kernel, all in all

    static ShmMessage about(ShmWord word, const FlowTuple& tuple);
    FlowTuple tuple() const;  // as the receiver sees it
};
static_assert(sizeof(ShmMessage) == 56);

class ShmSink {
  public:
    // `memory`: a memfd that came along, or -1; the caller closes it.
    virtual void shm_message(ShmPeerId from, const ShmMessage& message, int memory) = 0;
    // The neighbour's process is gone, and its connections have ended.
    virtual void shm_gone(ShmPeerId peer) = 0;

  protected:
    ~ShmSink() = default;
};

class ShmPeers {
  public:
    static constexpr unsigned kMostSlots = 16;  // processes that accept on one port
    static constexpr unsigned kMostPorts = 64;  // published; the rest stay with the kernel

    static void set_sink(ShmSink* sink);
    // Connections that this process accepts on `port` may go by memory.
    static void publish(uint16_t port);
    // The same for who comes from other network namespaces to this address.
    static void publish_abroad(const Endpoint& local);

    enum class Search : uint8_t {
        nobody,
        wait,  // a handshake is under way: ask again
        found,
    };
    // Who accepts on `port`.
    static Search search(uint16_t port, std::span<ShmPeerId> out, unsigned* count);
    // Who accepts there, in another network namespace.
    static Search search_abroad(const Endpoint& remote, std::span<ShmPeerId> out, unsigned* count);
    // Is `tuple` a connection of the kernel whose owner is the user that the neighbour's process ran as when it came? Of a neighbour
    // abroad only prove() can tell.
    static bool owns(ShmPeerId peer, const FlowTuple& tuple);
    // To a neighbour abroad: `twin`, to which nobody writes now, is about to be offered. False: nobody would believe it.
    static bool show(ShmPeerId peer, int twin);
    // Has a neighbour abroad the other end of `twin`, to which nobody writes now? True of every other neighbour.
    static bool prove(ShmPeerId peer, int twin);
    // The network namespace that all this is about (NetSpace::key()); 0: none yet.
    static uint64_t namespace_key();
    // [lease of the shm shard] Frames of `tuple` go to and come from this neighbour. Ended by Shard::unsteer.
    static Status route(ShmPeerId peer, const FlowTuple& tuple);

    // EPIPE: it is gone. `memory` stays the caller's.
    static Status send(ShmPeerId to, const ShmMessage& message, int memory = -1);
    // Sends `mine`, a back, and waits for the other side's. ETIMEDOUT; EPIPE. *memory is the caller's then, or -1.
    static Status exchange_back(ShmPeerId with, const ShmMessage& mine, int memory, Duration within,
                                ShmMessage* theirs, int* their_memory);

    static int wake_fd();
    static void turn();
    static void forget_in_child();
};

}  // namespace vma
