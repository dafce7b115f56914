// Netlink (netlink(7)): request building, attribute walking and a socket with dumps, over raw system calls.
// Own code rather than libnl: libnl reads the environment and opens files in load-time constructors, and its socket calls
// would enter our own hooks from inside libvma.so (docs/decisions/netlink-without-libnl.md).
// Threads: dump() and receive() from one thread at a time; post() from any thread.
#pragma once

#include <linux/netlink.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/own_fd.h"
#include "base/result.h"

namespace vma::netlink {

// A request: header, one fixed family header, attributes. At most kRoom bytes; what does not fit marks it bad and
// sending it gives EMSGSIZE.
class Request {
  public:
    static constexpr size_t kRoom = 512;
    Request(uint16_t type, uint16_t flags);
    void head(const void* family_header, size_t n) { append(family_header, n); }
    void put(uint16_t attr, const void* data, size_t n);
    template <class T>
    void put(uint16_t attr, const T& value) {
        put(attr, &value, sizeof(T));
    }
    void put_text(uint16_t attr, std::string_view text);  // with its terminating NUL
    bool good() const { return good_; }
    ByteView finish(uint32_t seq);

  private:
    void append(const void* data, size_t n);
    alignas(nlmsghdr) std::array<uint8_t, kRoom> bytes_{};
    size_t size_ = 0;
    bool good_ = true;
};

struct Message {
    uint16_t type = 0;
    uint16_t flags = 0;
    ByteView body;  // family header and attributes
    // The family header, zero filled when the message is shorter.
    template <class T>
    T head() const {
        T value{};
        std::memcpy(&value, body.data(), body.size() < sizeof(T) ? body.size() : sizeof(T));
        return value;
    }
    ByteView attributes(size_t family_header) const {
        const size_t skip = NLMSG_ALIGN(family_header);
        return body.size() > skip ? body.subspan(skip) : ByteView{};
    }
};

// Calls f(type, payload) for each attribute; stops at the first one that lies about its length.
template <class F>
void for_each(ByteView attrs, F&& f) {
    while (attrs.size() >= sizeof(nlattr)) {
        nlattr a;
        std::memcpy(&a, attrs.data(), sizeof(a));
        if (a.nla_len < sizeof(a) || a.nla_len > attrs.size()) return;
        f(uint16_t(a.nla_type & NLA_TYPE_MASK), attrs.subspan(sizeof(a), a.nla_len - sizeof(a)));
        const size_t step = NLA_ALIGN(a.nla_len);
        if (step >= attrs.size()) return;
        attrs = attrs.subspan(step);
    }
}

// The attributes 0..N-1 by type; the last of a repeated type wins; absent: no data().
template <size_t N>
struct Attributes {
    std::array<ByteView, N> at{};
    explicit Attributes(ByteView attrs) {
        for_each(attrs, [this](uint16_t type, ByteView payload) {
            if (type < N) at[type] = payload;
        });
    }
    bool has(size_t i) const { return at[i].data() != nullptr; }
    ByteView operator[](size_t i) const { return at[i]; }
};

template <class T>
T value_or(ByteView payload, T otherwise) {
    if (payload.size() < sizeof(T)) return otherwise;
    T v;
    std::memcpy(&v, payload.data(), sizeof(T));
    return v;
}
inline uint32_t be32_or(ByteView p, uint32_t otherwise) {
    return p.size() < 4 ? otherwise : load_be32(p.data());
}
std::string text(ByteView payload);  // up to the first NUL

class Socket {
  public:
    // NETLINK_* protocol and multicast groups (numbers, not a mask; unknown groups are left out).
    Status open(int protocol, std::span<const unsigned> groups = {});
    int fd() const { return fd_.fd(); }
    bool is_open() const { return fd_.valid(); }
    void close() { fd_.reset(); }

    // Sends `request` with NLM_F_DUMP semantics and calls each(Message) per answer; notifications that arrive in between
    // go to event(Message). EINTR is never returned; EAGAIN: the kernel was silent for two seconds; EBUSY: the dump was
    // inconsistent (NLM_F_DUMP_INTR), ask again.
    template <class Each, class Event>
    Status dump(Request& request, Each&& each, Event&& event) {
        return run_dump(request, sink(each), sink(event));
    }
    // Sends a request that wants no answer. Errors of the kernel arrive as notifications of type NLMSG_ERROR.
    Status post(Request& request) {
        const Result<uint32_t> sent = send(request);
        return sent ? Status{} : Status{Errno{sent.error()}};
    }
    // Reads all that is pending without blocking.
    template <class Event>
    Status receive(Event&& event) {
        return run_receive(sink(event));
    }
    // True once after notifications were lost (ENOBUFS).
    bool take_overrun() { return overrun_.exchange(false); }
    void mark_overrun() { overrun_ = true; }

  private:
    struct Sink {  // a function reference without allocation
        void* object;
        void (*fn)(void*, const Message&);
        void operator()(const Message& m) const { fn(object, m); }
    };
    template <class F>
    static Sink sink(F& f) {
        return {const_cast<void*>(static_cast<const void*>(&f)),
                [](void* object, const Message& m) { (*static_cast<F*>(object))(m); }};
    }
    Result<uint32_t> send(Request&);  // the sequence number used
    Status run_dump(Request&, Sink each, Sink event);
    Status run_receive(Sink event);
    // Bytes read; 0 when nothing came within timeout_ms.
    Result<size_t> read_some(int timeout_ms);

    OwnFd fd_;
    uint32_t port_ = 0;
    std::atomic<uint32_t> seq_{0};
    std::atomic<bool> overrun_{false};
    std::vector<uint8_t> buffer_;
};

}  // namespace vma::netlink
