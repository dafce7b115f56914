#include "dev/shm/handshake.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>

#include "base/close_aside.h"
#include "base/descriptor_message.h"
#include "base/high_fd.h"
#include "base/sys.h"

namespace vma::shm {
namespace {

constexpr unsigned kMostPassed = 2;

HandshakeMessage message_of(const Self& self, uint32_t kind, int error = 0) {
    return {kHandshakeMagic,       kVersion,        kind, {self.id.words[0], self.id.words[1]},
            self.namespace_cookie, uint32_t(error), 0};
}

Status send_message(int socket, const HandshakeMessage& message, std::span<const int> fds) {
    const iovec part{const_cast<HandshakeMessage*>(&message), sizeof message};
    return send_with_fds(socket, {&part, 1}, fds);
}

Status fail(std::string* why, int error, std::string text) {
    if (why) *why = std::move(text);
    return Errno{error};
}

// Neither question reaches the file system or driver that is behind the descriptor.
bool is_memory(int fd) { return sys::fcntl(fd, F_GET_SEALS) >= 0; }
bool is_bell(int fd) {
    itimerspec setting;
    return sys::raw(SYS_timerfd_gettime, fd, sys::ptr(&setting)) == 0;
}

// Descriptors as they came, none of which can be trusted to be closed.
struct Passed {
    ~Passed() {
        for (unsigned i = 0; i < count; ++i) {
            if (fds[i] >= 0 && (is_memory(fds[i]) || is_bell(fds[i])))
                sys::close(fds[i]);
            else
                close_aside(fds[i]);
        }
    }
    int take(unsigned i) { return std::exchange(fds[i], -1); }
    int fds[kMostPassed] = {-1, -1};
    unsigned count = 0;
};

// The next message, with room for `expected` descriptors and no more: the kernel does not install what is beyond.
Status receive_message(int socket, unsigned expected, HandshakeMessage& message, Passed& passed,
                       std::string* why) {
    iovec part{&message, sizeof message};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(kMostPassed * sizeof(int))];
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = CMSG_LEN(expected * sizeof(int));
    const ssize_t n = sys::recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return fail(why, int(-n), fmt::format("reading the handshake failed: errno {}", -n));
    for_each_passed(m, [&](int fd) { passed.fds[passed.count++] = fd; });
    if (n == 0) return fail(why, ECONNRESET, "the other side has closed");
    constexpr size_t kOfAllVersions = offsetof(HandshakeMessage, id);
    if (size_t(n) < kOfAllVersions || message.magic != kHandshakeMagic)
        return fail(why, EPROTO, "a message of something else");
    if (message.version != kVersion)
        return fail(why, EPROTONOSUPPORT,
                    fmt::format("its version is {}, ours is {}", message.version, kVersion));
    if (size_t(n) != sizeof message || (m.msg_flags & MSG_TRUNC))
        return fail(why, EPROTO, "a message of another size");
    if (message.reserved != 0) return fail(why, EPROTO, "a reserved field is not zero");
    if (message.kind == kRefused) {
        const bool sane = message.error > 0 && message.error < 4096;
        return fail(why, sane ? int(message.error) : EPROTO,
                    fmt::format("it refuses: errno {}", message.error));
    }
    if ((m.msg_flags & MSG_CTRUNC) || passed.count != expected)
        return fail(why, EPROTO, "another number of descriptors than there should be");
    return {};
}

Status check_neighbor(const HandshakeMessage& message, const Self& self, std::string* why) {
    if (message.namespace_cookie != self.namespace_cookie)
        return fail(why, EXDEV, "it is in another network namespace");
    if (ProcessId{{message.id[0], message.id[1]}} == self.id)
        return fail(why, ELOOP, "it is this process");
    return {};
}

Status know_neighbor(int socket, const HandshakeMessage& message, Neighbor& out, std::string* why) {
    ucred peer{};
    socklen_t n = sizeof peer;
    if (const int r = sys::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n); r < 0)
        return fail(why, -r, "the kernel does not say who it is");
    out = {{{message.id[0], message.id[1]}}, peer.pid, peer.uid};
    return {};
}

// The neighbour's half of the handshake: a message of this kind with so many descriptors, from somebody we can talk to.
Status hear(int socket, uint32_t kind, unsigned descriptors, const Self& self, Passed& passed,
            Neighbor& who, std::string* why) {
    HandshakeMessage message{};
    Status s = receive_message(socket, descriptors, message, passed, why);
    if (s && message.kind != kind)
        s = fail(why, EPROTO,
                 fmt::format("not {}", kind == kHello ? "a hello" : "an answer to a hello"));
    if (s) s = check_neighbor(message, self, why);
    if (s) s = know_neighbor(socket, message, who, why);
    return s;
}

}  // namespace

Status Opener::hello(int socket, const Self& self, uint32_t ring_bytes, std::string* why) {
    std::string ignored;
    if (why == nullptr) why = &ignored;
    parts_.close_all();
    self_ = self;
    const auto memory = create_pair_memory(ring_bytes, why);
    if (!memory) return Errno{memory.error()};
    parts_.memory = *memory;
    const auto bell = create_bell();
    if (!bell) return fail(why, bell.error(), "no timer for the bell");
    parts_.bell = *bell;
    const int fds[] = {parts_.memory, parts_.bell};
    const Status sent = send_message(socket, message_of(self, kHello), fds);
    if (!sent) return fail(why, sent.error(), "sending the hello failed");
    return {};
}

Result<PairParts> Opener::answer(int socket, Neighbor* neighbor, std::string* why) {
    Passed passed;
    Neighbor who;
    Status s = hear(socket, kWelcome, 1, self_, passed, who, why);
    if (s && !is_bell(passed.fds[0])) s = fail(why, EPROTO, "its bell is not a timer");
    if (!s) return Errno{s.error()};
    if (neighbor) *neighbor = who;
    parts_.neighbor_bell = raised(passed.take(0));
    parts_.side = Side::opener;
    return std::exchange(parts_, {});
}

Result<Neighbor> Joiner::hello(int socket, const Self& self, std::string* why) {
    parts_.close_all();
    self_ = self;
    Passed passed;
    Neighbor who;
    Status s = hear(socket, kHello, 2, self, passed, who, why);
    if (s && !is_memory(passed.fds[0])) s = fail(why, EPROTO, "its memory is not a memfd");
    if (s && !is_bell(passed.fds[1])) s = fail(why, EPROTO, "its bell is not a timer");
    if (!s) {
        if (s.error() != EAGAIN && s.error() != ECONNRESET) refuse(socket, self, s.error());
        return Errno{s.error()};
    }
    parts_.memory = raised(passed.take(0));
    parts_.neighbor_bell = raised(passed.take(1));
    parts_.side = Side::joiner;
    return who;
}

Result<PairParts> Joiner::welcome(int socket, std::string* why) {
    if (parts_.memory < 0) {
        (void)fail(why, EPROTO, "nobody has said hello");
        return Errno{EPROTO};
    }
    const auto bell = create_bell();
    if (!bell) {
        (void)fail(why, bell.error(), "no timer for the bell");
        return Errno{bell.error()};
    }
    parts_.bell = *bell;
    const Status sent = send_message(socket, message_of(self_, kWelcome), {&parts_.bell, 1});
    if (!sent) {
        parts_.close_all();
        (void)fail(why, sent.error(), "sending the welcome failed");
        return Errno{sent.error()};
    }
    return std::exchange(parts_, {});
}

void Joiner::refuse(int socket, const Self& self, int error) {
    (void)send_message(socket, message_of(self, kRefused, error), {});
}

}  // namespace vma::shm
