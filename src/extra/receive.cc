// Receiving without a copy, and giving back.
#include <cstring>

#include "extra/boundary.h"
#include "extra/functions.h"
#include "extra/packet_list.h"
#include "sock/boundary.h"
#include "sock/using.h"

namespace vma::extra {
namespace {

// What the kernel knows of the flags.
int kernel_flags(int flags) { return flags & ~(MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE); }

bool is_stream(int fd) {
    const sock::Using object{fd};
    return object.tcp() != nullptr;
}

// What one call gives to the library. No destructors: the frame may be left for good.
struct Request {
    int fd;
    void* buffer;
    size_t bytes;
    int* flags;
    sockaddr* from;
    socklen_t* fromlen;
    bool counted;
};

sock::Outcome take(const Request& r) {
    if (r.flags == nullptr || r.buffer == nullptr || (r.from != nullptr && r.fromlen == nullptr))
        return sock::Outcome::error(EFAULT);
    PacketList list(r.buffer, r.bytes, r.counted, is_stream(r.fd), *r.flags & MSG_VMA_ZCOPY_FORCE);
    iovec iov{r.buffer, r.bytes};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_name = r.from;
    msg.msg_namelen = r.from ? *r.fromlen : 0;
    const sock::Outcome outcome =
        sock::recvmsg(r.fd, &msg, kernel_flags(*r.flags), sock::RecvCall::recvfrom, &list);
    if (outcome.kind != sock::Outcome::Kind::value) return outcome;
    if (r.from != nullptr) *r.fromlen = msg.msg_namelen;
    *r.flags &= ~MSG_VMA_ZCOPY;
    if (list.any()) *r.flags |= MSG_VMA_ZCOPY;
    if (!list.truncated()) return outcome;
    *r.flags |= MSG_TRUNC;
    return sock::Outcome::value(0);
}

int receive(const Request& r) {
    return sock::cancellable<int>(
        [&] { return take(r); },
        [&] {
            if (*r.flags & MSG_VMA_ZCOPY_FORCE) {
                errno = EIO;
                return -1;
            }
            *r.flags &= ~MSG_VMA_ZCOPY;
            return int(
                ::recvfrom(r.fd, r.buffer, r.bytes, kernel_flags(*r.flags), r.from, r.fromlen));
        });
}

}  // namespace

int recvfrom_zcopy(int s, void* buf, size_t len, int* flags, sockaddr* from, socklen_t* fromlen) {
    return receive({s, buf, len, flags, from, fromlen, true});
}
int recvfrom_zcopy_606(int s, void* buf, size_t len, int* flags, sockaddr* from,
                       socklen_t* fromlen) {
    return receive({s, buf, len, flags, from, fromlen, false});
}

// Datagrams are an array of records without iovecs, as VMA has it, so that several only fit if the program copied the ids;
// packets of a stream are records as recvfrom_zcopy() wrote them.
int free_packets(int s, vma_packet_t* pkts, size_t count) {
    return ask_library([=] {
        const sock::Using object{s};
        sock::Socket* const socket = object.socket();
        if (socket == nullptr || (pkts == nullptr && count != 0)) return -EINVAL;
        const auto* at = reinterpret_cast<const uint8_t*>(pkts);
        for (size_t i = 0; i < count; i++) {
            void* id;
            size_t pieces;
            std::memcpy(&id, at + offsetof(vma_packet_t, packet_id), sizeof id);
            std::memcpy(&pieces, at + offsetof(vma_packet_t, sz_iov), sizeof pieces);
            if (!socket->give_back(id)) return -ENOENT;
            at += sizeof(vma_packet_t) + (object.tcp() ? pieces * sizeof(iovec) : 0);
        }
        return 0;
    });
}

int free_datagrams(int s, void** ids, size_t count) {
    return ask_library([=] {
        const sock::Using object{s};
        sock::Socket* const socket = object.socket();
        if (socket == nullptr || (ids == nullptr && count != 0)) return -EINVAL;
        for (size_t i = 0; i < count; i++)
            if (!socket->give_back(ids[i])) return -ENOENT;
        return 0;
    });
}

}  // namespace vma::extra
