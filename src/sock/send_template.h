// SendTemplate: a message that a program has put together in advance (templates of the extra API). The socket has a few; it
// sends one by fire() as send() would send its text, with less work while nothing has changed since the last time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/ip_addr.h"
#include "stack/prepared_datagram.h"

namespace vma {
class Shard;
}

namespace vma::sock {

struct SendTemplate {
    ByteView text() const { return {bytes.get(), size}; }
    uint32_t size = 0;
    std::unique_ptr<uint8_t[]> bytes;

    // Of a UDP socket: the frame, and what it was made from (UdpSocket::Destination); `shard` null: not made.
    PreparedDatagram datagram;
    Shard* shard = nullptr;
    Endpoint to;
    uint64_t generation = 0, neighbor_generation = 0, options = 0;

    // One is its socket's, the others are of sends that go on without it.
    std::atomic<uint32_t> refs{1};
};
inline void release(SendTemplate* t) {
    if (t && t->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete t;
}

// Those of one socket. A number is never given twice, so that one that is over is noticed.
class SendTemplates {
  public:
    static constexpr unsigned kMost = 64;

    ~SendTemplates();
    // Its number; 0: there are as many as there may be.
    uint64_t add(SendTemplate* t);
    // In use by the caller from here on, until leave(). ENOENT: there is none of that number; EBUSY: another thread has it.
    int enter(uint64_t number, SendTemplate** out);
    void leave(uint64_t number) { place(number).busy.store(false, std::memory_order_release); }
    // In use by the caller: it is over, and its place free.
    void drop(uint64_t number);
    void forget_in_child();  // what other threads of the parent were at

  private:
    struct Place {
        std::atomic<bool> busy{false};
        uint64_t number = 0;  // 0: free. Written by who has it
        SendTemplate* is = nullptr;
    };
    Place& place(uint64_t number) { return places_[number % kMost]; }
    std::array<Place, kMost> places_;
    std::atomic<uint64_t> rounds_{1};  // the place comes from the lower digits of a number
};

}  // namespace vma::sock
