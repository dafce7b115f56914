// The socket options that mellanox/vma_extra.h adds. What they set belongs to the socket wherever it is served.
#include <errno.h>
#include <mellanox/vma_extra.h>

#include <cstring>

#include "base/sys.h"
#include "extra/api.h"
#include "extra/boundary.h"
#include "extra/ring_options.h"
#include "sock/cyclic.h"
#include "sock/using.h"

namespace vma::extra {
namespace {

using sock::Outcome;

constexpr uint32_t kAnyTag = 0xfffff;      // the mask of flow tags, which is none itself
constexpr uint64_t kBytesOfKilobit = 125;  // vma_rate_limit_t counts in kbit/s, Linux in bytes/s
constexpr uint64_t kNoRateLimit = UINT64_MAX;  // as Linux says it; 0 in vma_rate_limit_t

Outcome set_rate(int fd, const void* value) {
    vma_rate_limit_t limit;
    std::memcpy(&limit, value, sizeof limit);
    const uint64_t rate = limit.rate ? limit.rate * kBytesOfKilobit : kNoRateLimit;
    return settled(sock::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate), [&] {
        return sys::raw(SYS_setsockopt, fd, SOL_SOCKET, SO_MAX_PACING_RATE, sys::ptr(&rate),
                        sizeof rate);
    });
}

Outcome get_rate(int fd, void* value) {
    uint64_t rate = kNoRateLimit;
    socklen_t len = sizeof rate;
    const Outcome asked =
        settled(sock::getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len), [&] {
            return sys::raw(SYS_getsockopt, fd, SOL_SOCKET, SO_MAX_PACING_RATE, sys::ptr(&rate),
                            sys::ptr(&len));
        });
    vma_rate_limit_t limit{};
    limit.rate = rate == kNoRateLimit ? 0 : uint32_t(rate / kBytesOfKilobit);
    if (asked.kind == Outcome::Kind::value) std::memcpy(value, &limit, sizeof limit);
    return asked;
}

bool is_rate(int name, socklen_t len) {
    return name == SO_MAX_PACING_RATE && len == sizeof(vma_rate_limit_t);
}

Outcome set_user_data(sock::Socket& socket, const void* value, socklen_t len) {
    uint64_t data;
    if (len != sizeof data) return Outcome::error(EINVAL);
    std::memcpy(&data, value, sizeof data);
    socket.user_data.store(data, std::memory_order_relaxed);
    socket.has_user_data.store(true, std::memory_order_release);
    return Outcome::value(0);
}

// For a cyclic buffer that is asked for after this (ring_options.cc).
Outcome set_ring_memory(const sock::Using& object, const void* value, socklen_t len) {
    iovec memory;
    if (len != sizeof memory) return Outcome::error(EINVAL);
    std::memcpy(&memory, value, sizeof memory);
    if (object.udp() != nullptr) sock::offer_ring_memory(*object.udp(), memory);
    return Outcome::value(0);
}

Outcome set_flow_tag(sock::Socket& socket, const void* value, socklen_t len) {
    uint32_t tag;
    if (len != sizeof tag) return Outcome::error(EINVAL);
    std::memcpy(&tag, value, sizeof tag);
    if (tag == 0 || tag == kAnyTag) return Outcome::error(EINVAL);
    socket.flow_tag.store(tag, std::memory_order_relaxed);
    return Outcome::value(0);
}

constexpr int kMessages = VMA_MESSAGES_SEND | VMA_MESSAGES_RECEIVE;
static_assert(VMA_MESSAGES_SEND == sock::TcpSocket::kMessageSend &&
              VMA_MESSAGES_RECEIVE == sock::TcpSocket::kMessageReceive);

Outcome set_messages(int fd, const void* value, socklen_t len) {
    const sock::Using object{fd};
    if (object.tcp() == nullptr) return Outcome::kernel();
    int bits;
    if (len != sizeof bits) return Outcome::error(EINVAL);
    std::memcpy(&bits, value, sizeof bits);
    if (bits & ~kMessages) return Outcome::error(EINVAL);
    object.tcp()->set_messages(uint8_t(bits));
    return Outcome::value(0);
}

Outcome get_messages(int fd, void* value, socklen_t* len) {
    const sock::Using object{fd};
    if (object.tcp() == nullptr) return Outcome::kernel();
    const int bits = object.tcp()->messages();
    if (*len < sizeof bits) return Outcome::error(EINVAL);
    std::memcpy(value, &bits, sizeof bits);
    *len = sizeof bits;
    return Outcome::value(0);
}

}  // namespace

Outcome setsockopt(int fd, int level, int name, const void* value, socklen_t len) {
    if (level != SOL_SOCKET || value == nullptr) [[likely]]
        return sock::setsockopt(fd, level, name, value, len);
    if (is_rate(name, len)) return set_rate(fd, value);
    if (name == SO_VMA_MESSAGES) return set_messages(fd, value, len);
    if (name < SO_VMA_USER_DATA || name > SO_VMA_SHUTDOWN_RX) [[likely]]
        return sock::setsockopt(fd, level, name, value, len);
    const sock::Using object{fd};
    sock::Socket* const socket = object.socket();
    if (socket == nullptr) return Outcome::kernel();
    switch (name) {
        case SO_VMA_USER_DATA:
            return set_user_data(*socket, value, len);
        case SO_VMA_FLOW_TAG:
            return set_flow_tag(*socket, value, len);
        case SO_VMA_RING_ALLOC_LOGIC:
            return set_ring_logic(object, value, len);
        case SO_VMA_RING_USER_MEMORY:
            return set_ring_memory(object, value, len);
        case SO_VMA_SHUTDOWN_RX:
            return socket->stop_receiving() ? Outcome::value(0) : Outcome::error(EOPNOTSUPP);
        default:
            return sock::setsockopt(fd, level, name, value, len);
    }
}

Outcome getsockopt(int fd, int level, int name, void* value, socklen_t* len) {
    if (level != SOL_SOCKET || value == nullptr || len == nullptr) [[likely]]
        return sock::getsockopt(fd, level, name, value, len);
    if (is_rate(name, *len)) return get_rate(fd, value);
    if (name == SO_VMA_MESSAGES) return get_messages(fd, value, len);
    if (name != SO_VMA_USER_DATA && name != SO_VMA_FLOW_TAG)
        return sock::getsockopt(fd, level, name, value, len);
    const sock::Using object{fd};
    sock::Socket* const socket = object.socket();
    if (socket == nullptr) return Outcome::kernel();
    if (name == SO_VMA_USER_DATA) {
        const uint64_t data = socket->user_data.load(std::memory_order_relaxed);
        if (*len != sizeof data) return Outcome::error(EINVAL);
        std::memcpy(value, &data, sizeof data);
    } else {
        const uint32_t tag = socket->flow_tag.load(std::memory_order_relaxed);
        if (*len < sizeof tag) return Outcome::error(EINVAL);
        std::memcpy(value, &tag, sizeof tag);
        *len = sizeof tag;
    }
    return Outcome::value(0);
}

}  // namespace vma::extra
