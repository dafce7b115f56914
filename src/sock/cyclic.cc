#include "sock/cyclic.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/spin_lock.h"
#include "base/sys.h"
#include "sock/looker.h"
#include "sock/udp_socket.h"
#include "wire/ethernet.h"
#include "wire/ipv4.h"
#include "wire/udp.h"

namespace vma::sock {
namespace {

static_assert(kCyclicHeaders == kEthernetSize + kIpv4Size + kUdpSize);

// Of a datagram that is about to be copied out: what its bytes do not say.
struct Seen {
    Endpoint source, destination;
    uint8_t ttl = 0, tos = 0;
    int64_t hw_time_ns = 0;
    ByteView link;  // its Ethernet addresses; empty: it came by the kernel, or in fragments
};

class Look final : public Looker {
  public:
    void look(const UdpDatagram& datagram) override {
        const UdpRxInfo& info = *datagram.info;
        seen.source = info.source;
        seen.destination = info.destination;
        seen.ttl = info.ttl;
        seen.tos = info.tos;
        seen.hw_time_ns = datagram.meta->hw_time_ns;
        if (info.next < kCyclicHeaders) return;
        std::memcpy(link_, datagram.payload.data() - info.next, sizeof link_);
        seen.link = link_;
    }

    Seen seen;

  private:
    uint8_t link_[12] = {};
};

// As of one packet without options; the UDP checksum is none, as it has been checked. What is not known is 0.
void write_headers(const Seen& seen, uint32_t payload, uint8_t* out) {
    std::memset(out, 0, kCyclicHeaders);
    std::copy(seen.link.begin(), seen.link.end(), out);
    store_be16(out + 12, ethertype::ipv4);
    Ipv4Header ip;
    ip.header_len = kIpv4Size;
    ip.tos = seen.tos;
    ip.total_len = uint16_t(kIpv4Size + kUdpSize + payload);
    ip.ttl = seen.ttl;
    ip.protocol = IPPROTO_UDP;
    ip.src = seen.source.addr.v4_host();
    ip.dst = seen.destination.addr.v4_host();
    emit_ipv4(ip, {out + kEthernetSize, kIpv4Size});
    emit_udp({seen.source.port, seen.destination.port, uint16_t(kUdpSize + payload), 0},
             {out + kEthernetSize + kIpv4Size, kUdpSize});
}

// What libc's call would do where the answer is the kernel's.
Outcome receive(UdpSocket& socket, int fd, msghdr& msg, Look& look) {
    const Outcome asked = socket.receive(fd, &msg, MSG_DONTWAIT, &look);
    if (asked.kind != Outcome::Kind::kernel) return asked;
    const ssize_t n = sys::recvmsg(fd, &msg, MSG_DONTWAIT);
    if (asked.v != 0) kernel_call_done(asked.v);
    return n < 0 ? Outcome::error(int(-n)) : Outcome::value(n);
}

}  // namespace

uint32_t CyclicShape::head_stride() const {
    return user_bytes + (headers == Headers::apart ? kCyclicHeaders : 0);
}

Result<std::unique_ptr<CyclicBuffer>> CyclicBuffer::make(const CyclicShape& shape,
                                                         const iovec& memory) {
    const uint64_t bytes = shape.body_bytes() + shape.head_bytes();
    const bool mine = memory.iov_base == nullptr;
    if (!mine && memory.iov_len < bytes) return Errno{EINVAL};
    void* at = memory.iov_base;
    if (mine) at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return Errno{ENOMEM};
    std::unique_ptr<CyclicBuffer> made(new (std::nothrow)
                                           CyclicBuffer(shape, static_cast<uint8_t*>(at), mine));
    if (made) made->hw_times_.reset(new (std::nothrow) int64_t[shape.elements]);
    if (made && made->hw_times_) return made;
    if (!made && mine) munmap(at, bytes);
    return Errno{ENOMEM};
}

CyclicBuffer::CyclicBuffer(const CyclicShape& shape, uint8_t* memory, bool mine)
    : shape_(shape), memory_(memory), mine_(mine) {}

CyclicBuffer::~CyclicBuffer() {
    if (mine_) munmap(memory_, shape_.body_bytes() + shape_.head_bytes());
}

int CyclicBuffer::put_next(UdpSocket& socket, int fd, uint32_t element) {
    uint8_t* const body_at = body(element);
    uint8_t* const head_at = head(element);
    const bool in_front = shape_.headers == CyclicShape::Headers::in_front;
    const bool apart = shape_.headers == CyclicShape::Headers::apart;
    const uint32_t skipped = in_front ? kCyclicHeaders : 0;
    uint8_t beyond;  // so that a datagram that does not fit is seen
    iovec to[] = {{head_at + (apart ? kCyclicHeaders : 0), shape_.user_bytes},
                  {body_at + skipped, shape_.most},
                  {&beyond, 1}};
    sockaddr_in from{};
    msghdr msg{};
    msg.msg_name = &from;
    msg.msg_namelen = sizeof from;
    msg.msg_iov = to;
    msg.msg_iovlen = 3;
    Look look;
    const Outcome outcome = receive(socket, fd, msg, look);
    if (outcome.kind != Outcome::Kind::value)
        return outcome.kind == Outcome::Kind::error ? int(outcome.v) : EAGAIN;
    const auto size = uint32_t(outcome.v);
    if (size > shape_.user_bytes + shape_.most) {
        SocketCounters::add(socket.counters.rx_errors, 1);
        return EMSGSIZE;
    }
    if (size < shape_.user_bytes)
        std::memset(static_cast<uint8_t*>(to[0].iov_base) + size, 0, shape_.user_bytes - size);
    const uint32_t rest = size > shape_.user_bytes ? size - shape_.user_bytes : 0;
    std::memset(body_at + skipped + rest, 0, shape_.stride - skipped - rest);
    if (look.seen.source.port == 0 && from.sin_family == AF_INET) {  // it came by the kernel
        look.seen.source = {IpAddr::v4(ntohl(from.sin_addr.s_addr)), ntohs(from.sin_port)};
        sockaddr_storage local{};
        auto* const name = reinterpret_cast<sockaddr*>(&local);
        socklen_t len = sizeof local;
        if ((in_front || apart) && sys::getsockname(fd, name, &len) == 0)
            (void)Endpoint::from_sockaddr(name, len, look.seen.destination);
    }
    if (in_front) write_headers(look.seen, size, body_at);
    if (apart) write_headers(look.seen, size, head_at);
    hw_times_[element] = look.seen.hw_time_ns;
    return 0;
}

int CyclicBuffer::read(UdpSocket& socket, int fd, size_t least, size_t most, CyclicRun* run) {
    const uint32_t room = shape_.elements - at_;
    const auto wanted = uint32_t(std::min<size_t>(most, room));
    int error = 0;
    while (waiting_ < wanted && error == 0) {
        error = put_next(socket, fd, at_ + waiting_);
        if (error == 0) waiting_++;
        if (error == EMSGSIZE) error = 0;
    }
    *run = {};
    const uint32_t count = std::min(waiting_, wanted);
    if (count < std::min<size_t>(least, room)) return error == EAGAIN ? 0 : error;
    if (count == 0) return error == EAGAIN ? 0 : error;
    *run = {body(at_), shape_.head_stride() ? head(at_) : nullptr, count, hw_times_[at_]};
    waiting_ -= count;
    at_ = at_ + count == shape_.elements ? 0 : at_ + count;
    return 0;
}

namespace {

struct Row {
    const UdpSocket* socket;
    iovec offered{};
    std::unique_ptr<CyclicBuffer> buffer;
};
SpinLock g_lock;
std::vector<Row>& rows() {
    static auto* const made = new std::vector<Row>;  // threads may still be in calls at exit
    return *made;
}
// For sockets that ask without any being there.
std::atomic<bool> g_any{false};

// Lock held.
Row* find(const UdpSocket& socket) {
    for (Row& row : rows())
        if (row.socket == &socket) return &row;
    return nullptr;
}

Row& row_of(const UdpSocket& socket) {
    if (Row* const known = find(socket)) return *known;
    g_any.store(true, std::memory_order_release);
    return rows().emplace_back(Row{&socket, {}, nullptr});
}

}  // namespace

CyclicBuffer* cyclic_of(const UdpSocket& socket) {
    if (!g_any.load(std::memory_order_acquire)) return nullptr;
    SpinGuard guard(g_lock);
    const Row* const row = find(socket);
    return row ? row->buffer.get() : nullptr;
}

void give_cyclic(const UdpSocket& socket, std::unique_ptr<CyclicBuffer> buffer) {
    SpinGuard guard(g_lock);
    row_of(socket).buffer = std::move(buffer);
}

void offer_ring_memory(const UdpSocket& socket, const iovec& memory) {
    SpinGuard guard(g_lock);
    row_of(socket).offered = memory;
}

iovec offered_ring_memory(const UdpSocket& socket) {
    SpinGuard guard(g_lock);
    const Row* const row = find(socket);
    return row ? row->offered : iovec{};
}

void forget_cyclic(const UdpSocket& socket) {
    if (!g_any.load(std::memory_order_acquire)) return;
    SpinGuard guard(g_lock);
    std::erase_if(rows(), [&](const Row& row) { return row.socket == &socket; });
}

void cyclic_forget_in_child() {
    new (&g_lock) SpinLock;
    if (!g_any.load(std::memory_order_acquire)) return;
    for (const Row& row : rows())
        if (row.buffer)
            row.buffer->release();  // another thread of the parent may have been reading
}

}  // namespace vma::sock
