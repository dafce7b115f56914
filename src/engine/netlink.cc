#include "engine/netlink.h"

#include <sys/socket.h>

#include <algorithm>

#include "base/sys.h"

namespace vma::netlink {

namespace {
constexpr size_t kReceiveBuffer = 64 * 1024;    // the kernel's dump pages are at most 32 KiB
constexpr int kSocketBuffer = 4 * 1024 * 1024;  // room for bursts of notifications
constexpr int kAnswerTimeoutMs = 2000;
}  // namespace

Request::Request(uint16_t type, uint16_t flags) {
    nlmsghdr h{};
    h.nlmsg_type = type;
    h.nlmsg_flags = flags;
    append(&h, sizeof(h));
}

void Request::append(const void* data, size_t n) {
    const size_t padded = NLMSG_ALIGN(n);
    if (padded > bytes_.size() - size_) {
        good_ = false;
        return;
    }
    if (n != 0) std::memcpy(bytes_.data() + size_, data, n);
    size_ += padded;
}

void Request::put(uint16_t attr, const void* data, size_t n) {
    const nlattr a{uint16_t(sizeof(nlattr) + n), attr};
    append(&a, sizeof(a));
    append(data, n);
}

void Request::put_text(uint16_t attr, std::string_view text) {
    std::array<char, 256> copy{};
    if (text.size() >= copy.size()) {
        good_ = false;
        return;
    }
    std::memcpy(copy.data(), text.data(), text.size());
    put(attr, copy.data(), text.size() + 1);
}

ByteView Request::finish(uint32_t seq) {
    nlmsghdr h;
    std::memcpy(&h, bytes_.data(), sizeof(h));
    h.nlmsg_len = uint32_t(size_);
    h.nlmsg_seq = seq;
    std::memcpy(bytes_.data(), &h, sizeof(h));
    return {bytes_.data(), size_};
}

std::string text(ByteView payload) {
    const char* begin = reinterpret_cast<const char*>(payload.data());
    return {begin, payload.empty() ? 0 : strnlen(begin, payload.size())};
}

Status Socket::open(int protocol, std::span<const unsigned> groups) {
    const int raw = sys::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
    if (raw < 0) return Errno{-raw};
    if (Status owned = fd_.adopt(raw); !owned) return owned;
    sockaddr_nl address{};
    address.nl_family = AF_NETLINK;
    int err = sys::bind(fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    socklen_t len = sizeof(address);
    if (err == 0) err = sys::getsockname(fd(), reinterpret_cast<sockaddr*>(&address), &len);
    if (err != 0) {
        fd_.reset();
        return Errno{-err};
    }
    port_ = address.nl_pid;
    const int size = kSocketBuffer;
    if (sys::setsockopt(fd(), SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) != 0)
        sys::setsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    const int on = 1;
    sys::setsockopt(fd(), SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof(on));
    for (const unsigned group : groups)
        sys::setsockopt(fd(), SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group));
    buffer_.resize(kReceiveBuffer);
    return {};
}

Result<uint32_t> Socket::send(Request& request) {
    if (!request.good()) return Errno{EMSGSIZE};
    const uint32_t seq = ++seq_;
    const ByteView bytes = request.finish(seq);
    sockaddr_nl kernel{};
    kernel.nl_family = AF_NETLINK;
    ssize_t n;
    do {
        n = sys::sendto(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL,
                        reinterpret_cast<const sockaddr*>(&kernel), sizeof(kernel));
    } while (n == -EINTR);
    if (n < 0) return Errno{int(-n)};
    return seq;
}

Result<size_t> Socket::read_some(int timeout_ms) {
    for (;;) {
        sockaddr_nl from{};
        socklen_t from_len = sizeof(from);
        const ssize_t n = sys::recvfrom(fd(), buffer_.data(), buffer_.size(), MSG_DONTWAIT,
                                        reinterpret_cast<sockaddr*>(&from), &from_len);
        if (n > 0) {
            if (from.nl_pid != 0) continue;  // only the kernel is believed
            return size_t(n);
        }
        if (n == -ENOBUFS) {
            overrun_ = true;
            continue;
        }
        if (n == -EINTR) continue;
        if (n != -EAGAIN && n != 0) return Errno{int(-n)};
        if (timeout_ms == 0) return size_t(0);
        pollfd p{fd(), POLLIN, 0};
        const timespec wait{timeout_ms / 1000, (timeout_ms % 1000) * 1000000L};
        const int ready = sys::ppoll(&p, 1, &wait);
        if (ready == 0) return size_t(0);
        if (ready < 0 && ready != -EINTR) return Errno{-ready};
    }
}

Status Socket::run_dump(Request& request, Sink each, Sink event) {
    const Result<uint32_t> sent = send(request);
    if (!sent) return Errno{sent.error()};
    const uint32_t seq = *sent;
    bool inconsistent = false;
    for (;;) {
        const Result<size_t> got = read_some(kAnswerTimeoutMs);
        if (!got) return Errno{got.error()};
        if (*got == 0) return Errno{EAGAIN};
        ByteView rest{buffer_.data(), *got};
        bool done = false;
        int error = 0;
        while (rest.size() >= sizeof(nlmsghdr)) {
            nlmsghdr h;
            std::memcpy(&h, rest.data(), sizeof(h));
            if (h.nlmsg_len < sizeof(h) || h.nlmsg_len > rest.size()) break;
            const Message m{h.nlmsg_type, h.nlmsg_flags,
                            rest.subspan(sizeof(h), h.nlmsg_len - sizeof(h))};
            rest = rest.subspan(std::min<size_t>(NLMSG_ALIGN(h.nlmsg_len), rest.size()));
            if (h.nlmsg_seq != seq || h.nlmsg_pid != port_) {
                event(m);
                continue;
            }
            if (h.nlmsg_flags & NLM_F_DUMP_INTR) inconsistent = true;
            if (m.type == NLMSG_DONE || m.type == NLMSG_ERROR) {
                done = true;
                error = -m.head<int32_t>();
            } else {
                each(m);
                // A single answer to a request without NLM_F_DUMP ends it.
                if ((h.nlmsg_flags & NLM_F_MULTI) == 0) done = true;
            }
        }
        if (!done) continue;
        if (error != 0) return Errno{error};
        if (inconsistent) return Errno{EBUSY};
        return {};
    }
}

Status Socket::run_receive(Sink event) {
    for (;;) {
        const Result<size_t> got = read_some(0);
        if (!got) return Errno{got.error()};
        if (*got == 0) return {};
        ByteView rest{buffer_.data(), *got};
        while (rest.size() >= sizeof(nlmsghdr)) {
            nlmsghdr h;
            std::memcpy(&h, rest.data(), sizeof(h));
            if (h.nlmsg_len < sizeof(h) || h.nlmsg_len > rest.size()) break;
            event({h.nlmsg_type, h.nlmsg_flags, rest.subspan(sizeof(h), h.nlmsg_len - sizeof(h))});
            rest = rest.subspan(std::min<size_t>(NLMSG_ALIGN(h.nlmsg_len), rest.size()));
        }
    }
}

}  // namespace vma::netlink
