#include "dev/packet/transmit.h"

#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/if_packet.h>

#include <cerrno>
#include <cstring>

#include "base/sys.h"
#include "dev/packet/segment.h"

namespace vma {
namespace {

constexpr uint8_t kNeedsChecksum = 1, kGsoTcp4 = 1, kGsoTcp6 = 4, kGsoUdp = 5, kGsoEcn = 0x80;
constexpr int kSendBuffer = 4 << 20;  // bytes
constexpr unsigned kMostVectors = 64;

VnetHeader vnet_header(const TxFrame& f) {
    VnetHeader v{};
    if (f.csum_start != 0) {
        v.flags = kNeedsChecksum;
        v.csum_start = f.csum_start;
        v.csum_offset = f.csum_offset;
    }
    if (f.gso != Gso::none) {
        v.gso_type = f.gso == Gso::tcp_v4 ? kGsoTcp4 : f.gso == Gso::tcp_v6 ? kGsoTcp6 : kGsoUdp;
        if (f.cwr) v.gso_type |= kGsoEcn;
        v.gso_size = f.gso_size;
        v.header_len = uint16_t(f.head.size());
    }
    return v;
}

// The part [at, at + len) of a vector, as a vector; how many entries, 0 when it does not fit.
unsigned slice(const iovec* from, unsigned count, uint32_t at, uint32_t len, iovec* out,
               unsigned room) {
    unsigned n = 0;
    for (unsigned i = 0; i < count && len; ++i) {
        const size_t have = from[i].iov_len;
        if (at >= have) {
            at -= uint32_t(have);
            continue;
        }
        const size_t take = have - at < len ? have - at : len;
        if (n == room) return 0;
        out[n++] = {static_cast<uint8_t*>(from[i].iov_base) + at, take};
        len -= uint32_t(take);
        at = 0;
    }
    return n;
}

}  // namespace

Status Transmitter::open(int ifindex, std::string* why) {
    const int fd = sys::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        *why =
            fd == -EPERM
                ? "opening a packet socket is not permitted: CAP_NET_RAW is needed, and CAP_BPF, "
                  "CAP_NET_ADMIN and CAP_PERFMON (or CAP_SYS_ADMIN) for the BPF programs"
                : fmt::format("opening a packet socket failed: errno {}", -fd);
        return Errno{-fd};
    }
    if (Status s = socket_.adopt(fd); !s) {
        *why = "no descriptor left for the packet socket";
        return s;
    }
    const int one = 1;
    // Whoever has the socket could bind it so that it hears all of the interface, with privileges or without. So it is deaf
    // for good.
    sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    const sock_fprog filter{1, &nothing};
    int r = sys::setsockopt(socket_.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter));
    if (r == 0) r = sys::setsockopt(socket_.fd(), SOL_SOCKET, SO_LOCK_FILTER, &one, sizeof(one));
    if (r == 0) r = sys::setsockopt(socket_.fd(), SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one));
    if (r == 0)
        r = sys::setsockopt(socket_.fd(), SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one));
    if (r == 0) {
        sockaddr_ll to{};
        to.sll_family = AF_PACKET;
        to.sll_ifindex = ifindex;
        r = sys::bind(socket_.fd(), reinterpret_cast<sockaddr*>(&to), sizeof(to));
    }
    if (r < 0) {
        *why =
            fmt::format("binding the packet socket to interface {} failed: errno {}", ifindex, -r);
        return Errno{-r};
    }
    // Best effort: the default is enough for small frames.
    (void)sys::setsockopt(socket_.fd(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBuffer,
                          sizeof(kSendBuffer));
    return {};
}

int Transmitter::send(const TxFrame& frame) {
    if (frame.gso == Gso::none) return send_whole(frame);
    uint32_t& pause = gso_pause_[unsigned(frame.gso)];
    if (pause) {
        --pause;
        return send_cut(frame);
    }
    const int error = refuse_gso_ ? ENOBUFS : send_whole(frame);
    if (error != ENOBUFS) return error;
    // Refused, or the device queue is full: the pieces tell.
    const int cut = send_cut(frame);
    if (cut == 0) pause = kCutWithoutAsking;
    return cut;
}

int Transmitter::send_whole(const TxFrame& frame) {
    const size_t head = frame.head.size();
    const VnetHeader vnet = vnet_header(frame);
    ssize_t r;
    if (head <= 128 && frame.payload_len <= kCopyLimit) {
        uint8_t* p = scratch_;
        std::memcpy(p, &vnet, sizeof(vnet));
        p += sizeof(vnet);
        std::memcpy(p, frame.head.data(), head);
        p += head;
        for (unsigned i = 0; i < frame.payload_count; ++i) {
            const iovec& v = frame.payload[i];
            if (v.iov_len > size_t(scratch_ + sizeof(scratch_) - p))
                return EINVAL;  // payload_len lies
            if (v.iov_len) std::memcpy(p, v.iov_base, v.iov_len);
            p += v.iov_len;
        }
        r = sys::sendto(socket_.fd(), scratch_, size_t(p - scratch_), MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
        iovec all[kMostVectors + 2];
        if (frame.payload_count > kMostVectors) return EMSGSIZE;
        all[0] = {const_cast<VnetHeader*>(&vnet), sizeof(vnet)};
        all[1] = {const_cast<uint8_t*>(frame.head.data()), head};
        for (unsigned i = 0; i < frame.payload_count; ++i) all[2 + i] = frame.payload[i];
        msghdr m{};
        m.msg_iov = all;
        m.msg_iovlen = 2u + frame.payload_count;
        r = sys::sendmsg(socket_.fd(), &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    return r < 0 ? int(-r) : 0;
}

int Transmitter::send_cut(const TxFrame& frame) {
    Segmenter cut(frame);
    if (!cut.ok()) return EINVAL;
    uint8_t head[Segmenter::kMostHeadBytes];
    iovec part[kMostVectors];
    bool any = false;
    while (!cut.done()) {
        uint32_t at, len;
        const uint32_t n = cut.next(head, &at, &len);
        TxFrame piece;
        piece.head = {head, n};
        piece.payload = part;
        piece.payload_count =
            uint16_t(slice(frame.payload, frame.payload_count, at, len, part, kMostVectors));
        piece.payload_len = len;
        piece.csum_start = frame.csum_start;
        piece.csum_offset = frame.csum_offset;
        const int error = piece.payload_count ? send_whole(piece) : EMSGSIZE;
        // A later piece that finds no room is lost like on the wire: the first ones have left already.
        if (error) return any ? 0 : error;
        any = true;
    }
    ++cut_frames_;
    return 0;
}

}  // namespace vma
