// XdpSocket: an AF_XDP socket that only receives, and its UMEM. Source: Documentation/networking/af_xdp.rst; linux/if_xdp.h.
//
// Received packets are lent chunks of the UMEM, which lies in the shard's arena; each chunk goes back to the kernel when its
// packet comes back, so one that nobody reads costs its own chunk only. Thread rules: the ring's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/arena.h"
#include "base/own_fd.h"
#include "base/result.h"
#include "dev/packet/hook.h"
#include "dev/packet/layout.h"
#include "pkt/pool.h"

namespace vma {

class XdpSocket final : public PacketLender {
  public:
    static constexpr uint32_t kChunks = 4096;  // a power of two: every ring has as many entries
    static constexpr uint32_t kHeadroom =
        256;  // of each chunk, the kernel's (XDP_PACKET_HEADROOM); a mark lies at its end

    struct Config {
        int ifindex = 0;
        uint32_t queue = 0;
        uint32_t chunk_bytes = 2048;  // or 4096
        bool try_zero_copy = false;
        bool trust_unfinished =
            false;  // frames whose L4 checksum is the pseudo-header's: nobody has finished it, or had to
        bool drop = false;  // what the pool has no packet for, instead of leaving it
        Arena* arena = nullptr;
        PacketPool* pool = nullptr;
    };
    ~XdpSocket() { close(); }
    // Errors: EBUSY (the queue has another XDP socket), EAFNOSUPPORT (kernel without them), ENOMEM, ENOBUFS (locked memory), those of
    // socket(2), setsockopt(2), mmap(2), bind(2).
    Status open(const Config& config, std::string* why);
    // All packets are back, and no program gives it frames any more.
    void close();
    void forget();  // in a forked child

    int fd() const { return socket_.fd(); }
    bool zero_copy() const { return zero_copy_; }
    // The longest frame that a chunk takes.
    uint32_t room() const { return config_.chunk_bytes - kHeadroom; }

    // Is a frame there? *mark: what lies in front of it.
    bool head(vma_mark* mark);
    // The frame that head() saw. Empty: the pool has nothing; *wait says that the frame is still there.
    Packet take(bool* wait);
    // Chunks that came back, to the kernel; and how far recv() is.
    void refill();
    void publish();

    uint32_t position() const { return at_; }
    uint32_t end() const { return __atomic_load_n(rx_.producer, __ATOMIC_ACQUIRE); }
    void give_back(PacketBuf& buf) override;

    // Frames that found no room, by the kernel's count.
    uint64_t dropped_full() const;
    uint64_t frames() const { return frames_; }
    uint64_t bytes() const { return bytes_; }
    uint64_t malformed() const { return malformed_; }
    uint64_t dropped() const { return dropped_; }  // for want of a packet

  private:
    // One of the rings that user space and the kernel share.
    struct SharedRing {
        PrivateMapping map;
        uint32_t *producer = nullptr, *consumer = nullptr, *flags = nullptr;
        uint8_t* entries = nullptr;
    };
    Status make_rings();
    static Status map_ring(SharedRing& ring, int fd, const void* offsets, size_t entry_bytes,
                           uint64_t at);
    Status bind();
    bool is_unfinished(const uint8_t* frame, uint32_t len) const;

    Config config_;
    OwnFd socket_;
    uint8_t* umem_ = nullptr;
    size_t umem_bytes_ = 0;
    bool zero_copy_ = false;
    SharedRing rx_, fill_;
    std::unique_ptr<uint32_t[]> free_;  // chunks that neither the kernel nor a packet has
    uint32_t free_count_ = 0;
    uint32_t at_ = 0;        // next descriptor to look at
    uint32_t produced_ = 0;  // as last read
    uint64_t frames_ = 0, bytes_ = 0, malformed_ = 0, dropped_ = 0;
};

}  // namespace vma
