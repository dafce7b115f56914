#include "dev/xdp/socket.h"

#include <fmt/format.h>
#include <linux/if_xdp.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "base/bytes.h"
#include "base/sys.h"

#ifndef AF_XDP
#define AF_XDP 44
#endif
#ifndef SOL_XDP
#define SOL_XDP 283
#endif

namespace vma {
namespace {

constexpr uint32_t kMask = XdpSocket::kChunks - 1;
constexpr uint32_t kLeastRefill = 64;
constexpr uint32_t kCompletions = 64;  // a UMEM has to have them; nothing is sent

uint32_t folded(uint32_t sum) {
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

}  // namespace

Status XdpSocket::map_ring(SharedRing& ring, int fd, const void* offsets, size_t entry_bytes,
                           uint64_t at) {
    const auto& o = *static_cast<const xdp_ring_offset*>(offsets);
    if (const Status s = ring.map.map(fd, o.desc + size_t(kChunks) * entry_bytes,
                                      PROT_READ | PROT_WRITE, at, true);
        !s)
        return s;
    const auto word = [&](uint64_t offset) {
        return reinterpret_cast<uint32_t*>(ring.map.at() + offset);
    };
    ring.producer = word(o.producer);
    ring.consumer = word(o.consumer);
    ring.flags = word(o.flags);
    ring.entries = ring.map.at() + o.desc;
    return {};
}

Status XdpSocket::make_rings() {
    const int fd = socket_.fd();
    const auto set = [&](int name, const void* value, size_t bytes) {
        return sys::setsockopt(fd, SOL_XDP, name, value, socklen_t(bytes));
    };
    xdp_umem_reg reg{};
    reg.addr = reinterpret_cast<uintptr_t>(umem_);
    reg.len = umem_bytes_;
    reg.chunk_size = config_.chunk_bytes;
    int r = set(XDP_UMEM_REG, &reg, sizeof reg);
    if (r == 0) r = set(XDP_UMEM_FILL_RING, &kChunks, sizeof kChunks);
    if (r == 0) r = set(XDP_UMEM_COMPLETION_RING, &kCompletions, sizeof kCompletions);
    if (r == 0) r = set(XDP_RX_RING, &kChunks, sizeof kChunks);
    xdp_mmap_offsets offsets{};
    socklen_t len = sizeof offsets;
    if (r == 0) r = sys::getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &len);
    if (r < 0) return Errno{-r};
    if (len != sizeof offsets) return Errno{EOPNOTSUPP};  // before Linux 5.4
    const Status s = map_ring(rx_, fd, &offsets.rx, sizeof(xdp_desc), XDP_PGOFF_RX_RING);
    return s ? map_ring(fill_, fd, &offsets.fr, sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING) : s;
}

Status XdpSocket::bind() {
    sockaddr_xdp to{};
    to.sxdp_family = AF_XDP;
    to.sxdp_ifindex = uint32_t(config_.ifindex);
    to.sxdp_queue_id = config_.queue;
    int r = -EOPNOTSUPP;
    for (const bool zero_copy : {true, false}) {
        if (zero_copy && !config_.try_zero_copy) continue;
        to.sxdp_flags = uint16_t((zero_copy ? XDP_ZEROCOPY : XDP_COPY) | XDP_USE_NEED_WAKEUP);
        r = sys::bind(socket_.fd(), reinterpret_cast<sockaddr*>(&to), sizeof to);
        zero_copy_ = zero_copy && r == 0;
        if (r == 0 || r == -EBUSY) break;
    }
    return r < 0 ? Status(Errno{-r}) : Status();
}

Status XdpSocket::open(const Config& config, std::string* why) {
    config_ = config;
    const int fd = sys::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        *why = fd == -EPERM ? "opening an XDP socket is not permitted: CAP_NET_RAW is needed"
                            : fmt::format("opening an XDP socket failed: errno {}", -fd);
        return Errno{-fd};
    }
    Status s = socket_.adopt(fd);
    if (s) {
        umem_bytes_ = size_t(kChunks) * config.chunk_bytes;
        umem_ = static_cast<uint8_t*>(config.arena->allocate(umem_bytes_, Arena::kPage));
        free_.reset(new (std::nothrow) uint32_t[kChunks]);
        if (umem_ == nullptr || !free_) s = Errno{ENOMEM};
    }
    if (s) s = make_rings();
    if (!s) {
        *why = fmt::format("setting an XDP socket up failed: errno {}", s.error());
        return s;
    }
    for (uint32_t i = 0; i < kChunks; ++i) free_[i] = kChunks - 1 - i;
    free_count_ = kChunks;
    refill();
    if (s = bind(); !s)
        *why =
            s.error() == EBUSY
                ? fmt::format("queue {} of interface {} has another XDP socket", config.queue,
                              config.ifindex)
                : fmt::format("binding an XDP socket to queue {} of interface {} failed: errno {}",
                              config.queue, config.ifindex, s.error());
    return s;
}

void XdpSocket::close() {
    rx_.map.reset();
    fill_.map.reset();
    socket_.reset();
    if (umem_ != nullptr) config_.arena->free(umem_, umem_bytes_, Arena::kPage);
    umem_ = nullptr;
}

void XdpSocket::forget() {
    rx_.map.forget();
    fill_.map.forget();
    umem_ = nullptr;
}

bool XdpSocket::head(vma_mark* mark) {
    if (at_ == produced_) {
        produced_ = end();
        if (at_ == produced_) return false;
    }
    xdp_desc d;
    std::memcpy(&d, rx_.entries + size_t(at_ & kMask) * sizeof d, sizeof d);
    *mark = {};
    const uint32_t within = uint32_t(d.addr & (config_.chunk_bytes - 1));
    if (d.addr < umem_bytes_ && within >= sizeof *mark) {
        std::memcpy(mark, umem_ + d.addr - sizeof *mark, sizeof *mark);
        __builtin_prefetch(umem_ + d.addr);
    }
    return true;
}

// Is it an IPv4 packet whose L4 checksum is the sum of the pseudo-header, as a sender leaves it to the device?
bool XdpSocket::is_unfinished(const uint8_t* frame, uint32_t len) const {
    if (len < 14 + 20) return false;
    const uint8_t* const ip = frame + 14;
    const uint32_t header = (ip[0] & 15u) * 4, total = load_be16(ip + 2);
    const uint32_t field = header + (ip[9] == IPPROTO_TCP ? 16 : 6);
    if (header < 20 || total < field + 2 || total > len - 14) return false;
    uint32_t sum = ip[9] + total - header;
    for (unsigned i = 12; i < 20; i += 2) sum += load_be16(ip + i);
    return folded(sum) == load_be16(ip + field);
}

Packet XdpSocket::take(bool* wait) {
    xdp_desc d;
    std::memcpy(&d, rx_.entries + size_t(at_ & kMask) * sizeof d, sizeof d);
    *wait = false;
    const uint64_t chunk = d.addr / config_.chunk_bytes;
    if (chunk >= kChunks || d.len < 14 ||
        d.len > config_.chunk_bytes - d.addr % config_.chunk_bytes) {
        ++malformed_;
        ++at_;
        if (chunk < kChunks) free_[free_count_++] = uint32_t(chunk);
        return {};
    }
    uint8_t* const frame = umem_ + d.addr;
    Packet p = config_.pool->lend(frame, d.len, this, chunk);
    if (!p) {
        *wait = !config_.drop;
        if (config_.drop) {
            ++dropped_;
            ++at_;
            free_[free_count_++] = uint32_t(chunk);
        }
        return {};
    }
    ++at_;
    p->meta.ifindex = uint32_t(config_.ifindex);
    p->meta.checksum_good = config_.trust_unfinished && is_unfinished(frame, d.len);
    ++frames_;
    bytes_ += d.len;
    return p;
}

void XdpSocket::give_back(PacketBuf& buf) { free_[free_count_++] = uint32_t(buf.lender_cookie); }

void XdpSocket::publish() {
    if (__atomic_load_n(rx_.consumer, __ATOMIC_RELAXED) != at_)
        __atomic_store_n(rx_.consumer, at_, __ATOMIC_RELEASE);
    if (free_count_ >= kLeastRefill) refill();
}

// The ring has an entry for every chunk, so there is always room.
void XdpSocket::refill() {
    uint32_t to = __atomic_load_n(fill_.producer, __ATOMIC_RELAXED);
    while (free_count_ != 0) {
        const uint64_t address = uint64_t(free_[--free_count_]) * config_.chunk_bytes;
        std::memcpy(fill_.entries + size_t(to++ & kMask) * sizeof address, &address,
                    sizeof address);
    }
    __atomic_store_n(fill_.producer, to, __ATOMIC_RELEASE);
    // A driver that found no chunk may be waiting.
    if (__atomic_load_n(fill_.flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP)
        (void)sys::recvfrom(socket_.fd(), nullptr, 0, MSG_DONTWAIT);
}

uint64_t XdpSocket::dropped_full() const {
    xdp_statistics s{};
    socklen_t len = sizeof s;
    if (sys::getsockopt(socket_.fd(), SOL_XDP, XDP_STATISTICS, &s, &len) != 0) return 0;
    return s.rx_dropped + s.rx_ring_full;
}

}  // namespace vma
