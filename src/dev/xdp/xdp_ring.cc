#include "dev/xdp/xdp_ring.h"

#include <fmt/format.h>
#include <linux/membarrier.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <new>

#include "base/sys.h"
#include "dev/packet/packet_ring_class.h"
#include "dev/xdp/socket.h"

namespace vma {
namespace {

constexpr uint32_t kSmallChunk = 2048, kLargeChunk = 4096;

class XdpRing final : public PacketRing {
  public:
    ~XdpRing() override;
    Status open(const XdpRingConfig& config, std::string* why);

    unsigned recv(std::span<Packet> out) override;
    // Positions of the two ways together: frames are taken in one order, so neither runs ahead of the other.
    RingBacklog backlog() const override {
        const RingBacklog slow = receiver_.backlog();
        const uint64_t ahead = uint32_t(socket_.end() - socket_.position());
        return {slow.at + socket_frames_, slow.end + socket_frames_ + ahead};
    }
    int wake_fd() const override { return wake_.fd(); }
    bool arm() override;
    void disarm() override;
    RingCounters counters() const override;

  private:
    Status open_socket(const XdpRingConfig& config, const XdpDriver& driver, std::string* why);
    Status make_wake_fd();
    void watch_socket(bool on);
    bool socket_is_next();

    XdpProgram program_;
    XdpSocket socket_;
    OwnFd wake_;  // an epoll of the doorbell and, while the ring sleeps, the socket
    bool watched_ = false;
    bool holding_ = false;  // a frame without a mark waits until the socket is read up to let_by_
    uint32_t let_by_ = 0;
    uint64_t socket_frames_ = 0;  // descriptors that were passed
};

XdpRing::~XdpRing() {
    if (sys::getpid() != pid_) {  // a forked child: none of this is its own
        socket_.forget();
        return;
    }
    if (slot_ == 0 || socket_.fd() < 0) return;
    // A forked child may keep the socket open for a moment. So first nothing is given to it any more: then its memory is quiet.
    std::atomic_ref(slot().xsk_ifindex).store(0);
    sys::raw(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);
    socket_.close();
}

Status XdpRing::open(const XdpRingConfig& config, std::string* why) {
    const XdpDriver driver = xdp_driver_of(config.packet.ifindex);
    if (driver.has_hardware && driver.strips_vlan_tags) {
        *why = fmt::format(
            "{} takes VLAN tags off, which XDP programs then do not see: ethtool -K DEVICE rxvlan "
            "off",
            driver.name);
        return Errno{EOPNOTSUPP};
    }
    if (const Status s = PacketRing::open(config.packet, why); !s) return s;
    XdpMode mode = config.mode;
    // Where native XDP is a detour: the frames are packets of the kernel already.
    if (mode == XdpMode::automatic && !driver.has_hardware) mode = XdpMode::generic;
    if (const Status s = program_.open(*hook_, ifindex_, mode, why); !s) return s;
    if (const Status s = open_socket(config, driver, why); !s) return s;
    if (const Status s = program_.give(slot_, socket_.fd()); !s) {
        *why = fmt::format("giving the XDP socket to the program failed: errno {}", s.error());
        return s;
    }
    program_.seal();
    if (const Status s = make_wake_fd(); !s) {
        *why = "no descriptor left for the wake-up";
        return s;
    }
    slot().xsk_room = socket_.room() - uint32_t(sizeof(vma_mark));
    std::copy(config.mac.begin(), config.mac.end(), slot().xsk_mac);
    std::atomic_ref(slot().xsk_ifindex).store(uint32_t(ifindex_), std::memory_order_release);
    return {};
}

// The first queue that has no XDP socket. Frames that came in by others take the packet ring's way.
Status XdpRing::open_socket(const XdpRingConfig& config, const XdpDriver& driver,
                            std::string* why) {
    XdpSocket::Config c;
    c.ifindex = ifindex_;
    const uint32_t longest = config.packet.mtu + 14 + uint32_t(sizeof(vma_mark));
    c.chunk_bytes = longest <= kSmallChunk - XdpSocket::kHeadroom ? kSmallChunk : kLargeChunk;
    c.try_zero_copy = !program_.generic();
    c.trust_unfinished = !driver.has_hardware;
    c.drop = config.packet.drop_without_packet;
    c.arena = config.arena;
    c.pool = config.packet.pool;
    // To generic XDP nearly all frames are of the first.
    const unsigned queues = program_.generic() ? 1 : driver.queues;
    Status s = Errno{EOPNOTSUPP};
    for (c.queue = 0; c.queue < queues; ++c.queue) {
        s = socket_.open(c, why);
        slot().xsk_queue = c.queue;
        if (s) return s;
        socket_.close();
        if (s.error() != EBUSY) return s;
    }
    return Errno{EADDRINUSE};
}

Status XdpRing::make_wake_fd() {
    const int fd = sys::epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0) return Errno{-fd};
    if (const Status s = wake_.adopt(fd); !s) return s;
    epoll_event event{EPOLLIN, {}};
    const int r = sys::epoll_ctl(wake_.fd(), EPOLL_CTL_ADD, doorbell_.fd(), &event);
    return r < 0 ? Status(Errno{-r}) : Status();
}

// Not for longer than it sleeps: each frame would call on the epoll, on the sender's time. Moved to another number meanwhile
// (own_fd_relocate), the socket stays under its old one and is looked at once more than needed, which does no harm.
void XdpRing::watch_socket(bool on) {
    if (watched_ == on) return;
    epoll_event event{EPOLLIN, {}};
    watched_ = on;
    (void)sys::epoll_ctl(wake_.fd(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, socket_.fd(), &event);
}

// Which way does the next frame come? One is there by either.
bool XdpRing::socket_is_next() {
    vma_mark mark;
    bool in_socket = socket_.head(&mark);
    // After the look at the socket: what is earlier than its frame is seen now.
    const Receiver::Head slow = receiver_.head();
    if (!slow.there) return holding_ = false, true;
    if (!in_socket) in_socket = socket_.head(&mark);  // and what is earlier than this one
    if (!in_socket) return false;
    if (slow.ordered && mark.slot == VMA_MARKED + slot_)
        return int32_t(mark.order - slow.order) < 0;
    // A frame that has no place in the order comes after those that were there when it was seen.
    if (!holding_) let_by_ = socket_.end();
    holding_ = true;
    return int32_t(let_by_ - socket_.position()) > 0;
}

unsigned XdpRing::recv(std::span<Packet> out) {
    unsigned n = 0;
    // As many looks as packets, twice: what is dropped must not keep the caller here.
    for (size_t looks = 2 * out.size(); looks != 0 && n < out.size(); --looks) {
        if (socket_is_next()) {
            vma_mark mark;
            if (!socket_.head(&mark)) break;
            bool wait = false;
            Packet p = socket_.take(&wait);
            if (wait) break;
            ++socket_frames_;
            if (p) out[n++] = std::move(p);
        } else {
            const uint64_t before = receiver_.position();
            n += receiver_.recv(out.subspan(n, 1));
            if (receiver_.position() == before) break;
            holding_ = false;
        }
    }
    socket_.publish();
    tell_position();
    return n;
}

bool XdpRing::arm() {
    watch_socket(true);
    if (!PacketRing::arm()) return watch_socket(false), false;
    if (socket_.end() == socket_.position()) {
        socket_.refill();
        return true;
    }
    disarm();
    return false;
}

void XdpRing::disarm() {
    watch_socket(false);
    PacketRing::disarm();
}

RingCounters XdpRing::counters() const {
    RingCounters c = PacketRing::counters();
    c.rx_frames += socket_.frames();
    c.rx_bytes += socket_.bytes();
    c.drops.add(DropReason::ring_full, socket_.dropped_full());
    c.drops.add(DropReason::ring_damaged, socket_.malformed());
    c.drops.add(DropReason::no_buffer, socket_.dropped());
    return c;
}

}  // namespace

Result<Ring*> open_xdp_ring(const XdpRingConfig& config, std::string* why) {
    std::string ignored;
    std::unique_ptr<XdpRing> ring(new (std::nothrow) XdpRing);
    if (!ring) return Errno{ENOMEM};
    if (const Status s = ring->open(config, why ? why : &ignored); !s) return Errno{s.error()};
    return static_cast<Ring*>(ring.release());
}

}  // namespace vma
