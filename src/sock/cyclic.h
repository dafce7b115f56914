// CyclicBuffer: memory in which the datagrams of one socket are put at fixed distances, round and round, for a program that reads
// them where they are (vma_cyclic_buffer_read of the extra API).
//
//     bodies   | 0 | 1 | 2 | 3 |   one element per datagram; what it does not fill is zero
//     heads    |0|1|2|3|           the same for what the program wants apart; perhaps empty
//              returned, then put there and not returned yet, then free
//
// Threads: one reads at a time (claim()). Few programs have any, so sockets know nothing of them: the buffers are in a table of their
// own (cyclic_of()).
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/result.h"

namespace vma::sock {

class UdpSocket;

struct CyclicShape {
    // What a datagram has in front of its bytes, and how much of it stands apart, among the heads.
    enum class Headers : uint8_t { none, in_front, apart };
    uint32_t elements = 0;
    uint32_t stride = 0;      // between bodies
    uint32_t user_bytes = 0;  // the first of a datagram, which stand apart
    uint32_t most = 0;        // of the rest; a longer datagram is dropped
    Headers headers = Headers::none;

    // Ethernet, IPv4 and UDP: kCyclicHeaders bytes.
    uint32_t head_stride() const;
    uint64_t body_bytes() const { return uint64_t(elements) * stride; }
    uint64_t head_bytes() const { return uint64_t(elements) * head_stride(); }
};
inline constexpr uint32_t kCyclicHeaders = 42;

// Consecutive elements.
struct CyclicRun {
    uint8_t* bodies = nullptr;
    uint8_t* heads = nullptr;  // null: there are none
    uint32_t packets = 0;
    int64_t hw_time_ns = 0;  // of the first; 0: its device has stamped none
};

class CyclicBuffer {
  public:
    // `memory`: of the program, else it is made. EINVAL: too small for the shape; ENOMEM.
    static Result<std::unique_ptr<CyclicBuffer>> make(const CyclicShape& shape,
                                                      const iovec& memory);
    ~CyclicBuffer();
    CyclicBuffer(const CyclicBuffer&) = delete;
    CyclicBuffer& operator=(const CyclicBuffer&) = delete;

    const CyclicShape& shape() const { return shape_; }
    uint8_t* bodies() const { return memory_; }

    // False: another thread has it.
    bool claim() { return !claimed_.exchange(true, std::memory_order_acquire); }
    void release() { claimed_.store(false, std::memory_order_release); }

    // [claimed] Takes what waits in the socket, up to `most` elements or the end of the memory. Fewer than `least`: none is
    // returned, and they wait here for the next read, unless the memory ends there. 0, or an errno.
    int read(UdpSocket& socket, int fd, size_t least, size_t most, CyclicRun* run);

  private:
    CyclicBuffer(const CyclicShape& shape, uint8_t* memory, bool mine);
    // One datagram into an element. EAGAIN: there is none. EMSGSIZE: it did not fit and is gone.
    int put_next(UdpSocket& socket, int fd, uint32_t element);
    uint8_t* body(uint32_t element) const { return memory_ + uint64_t(element) * shape_.stride; }
    uint8_t* head(uint32_t element) const {
        return memory_ + shape_.body_bytes() + uint64_t(element) * shape_.head_stride();
    }

    const CyclicShape shape_;
    uint8_t* const memory_;
    const bool mine_;
    uint32_t at_ = 0;       // the first element that was not returned
    uint32_t waiting_ = 0;  // such elements with a datagram
    std::unique_ptr<int64_t[]> hw_times_;
    std::atomic<bool> claimed_{false};
};

// The buffer of a socket that is in use by the caller; null: it has none.
CyclicBuffer* cyclic_of(const UdpSocket& socket);
// A socket gets one once.
void give_cyclic(const UdpSocket& socket, std::unique_ptr<CyclicBuffer> buffer);
// Memory of the program for the buffer that it will ask for; all zero: it has named none.
void offer_ring_memory(const UdpSocket& socket, const iovec& memory);
iovec offered_ring_memory(const UdpSocket& socket);
// The socket is gone, and with it all this.
void forget_cyclic(const UdpSocket& socket);
void cyclic_forget_in_child();

}  // namespace vma::sock
