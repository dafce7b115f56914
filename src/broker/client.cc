#include "broker/client.h"

#include <errno.h>
#include <fcntl.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/memory_file.h"
#include "base/own_fd.h"
#include "base/process.h"
#include "base/sys.h"
#include "broker/channel.h"
#include "broker/spawn.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace vma::broker {
namespace {

ClientConfig g_config;
std::mutex g_lock;  // the state below, and one request at a time
OwnFd g_door, g_session;
uint32_t g_session_pid = 0;  // a child of a fork that nobody hooked must not use its parent's
uint32_t g_serial = 0;
std::atomic<bool> g_door_open{false};
bool g_tried = false;  // to start one
bool g_asked_host = false;
bool g_hosts = false;  // the door is that of the host's broker
bool g_said = false;   // that it is gone
bool g_kept =
    false;  // it keeps a ring of this process, or its link to neighbours: without it there are no new ones
// Of a ring that is kept the broker has ended; another may come. Without the lock for who only looks.
std::atomic<bool> g_bereft{false};

uint32_t self() { return uint32_t(self_identity() >> 32); }

uint64_t netns_cookie() {
    const int fd = sys::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 0;
    uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    if (sys::getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) != 0) cookie = 0;
    sys::close(fd);
    return cookie;
}

void lost() {
    g_session.reset();
    g_door.reset();
    g_door_open = false;
    g_bereft = g_kept;
    if (g_said) return;
    g_said = true;
    if (g_hosts && !g_kept) {
        vma_log(
            info, "broker",
            "the broker of this host does not serve this process (its policy does not name this "
            "network namespace, or the library is of another version, or it serves too many)");
        return;
    }
    if (g_kept) {
        vma_log(warning, "broker",
                "the broker of this process is gone, and the process has no privileges: its "
                "connections go on as they are; what it opens stays with the kernel until the "
                "broker of the host (vmad --listen) runs, which is asked every second");
        return;
    }
    vma_log(info, "broker",
            "the broker of this process is gone: connections stay with the library where handing "
            "them back needs a capability that the process does not have, and a crash resets them");
}

// [g_lock] The session of this process; false: there is no broker.
bool session() {
    if (!g_door_open.load(std::memory_order_relaxed)) return false;
    if (g_session.valid() && g_session_pid == self()) return true;
    g_session.reset();
    int pair[2];
    const long made =
        sys::raw(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sys::ptr(pair));
    if (made < 0) return false;
    // Any op will do: the door passes sockets, not requests.
    const Status sent = send_message(g_door.fd(), Op::hello, 0, nullptr, 0, {&pair[1], 1});
    sys::close(pair[1]);
    if (!sent) {
        sys::close(pair[0]);
        if (sent.error() != EAGAIN) lost();
        return false;
    }
    if (!g_session.adopt(pair[0])) return false;
    g_session_pid = self();
    Hello hello;
    hello.layout = g_config.layout;
    hello.netns_cookie = netns_cookie();
    if (!send_message(g_session.fd(), Op::hello, ++g_serial, &hello, sizeof hello)) lost();
    return g_session.valid();
}

// [g_lock]
bool tell(Op op, const void* body, size_t bytes, std::span<const int> fds = {}) {
    if (!session()) return false;
    Status sent = send_message(g_session.fd(), op, ++g_serial, body, bytes, fds);
    // Many at once (a thousand connections that end), and it has other clients, too.
    if (sent.error() == EAGAIN && wait_writable(g_session.fd(), kAnswerMs))
        sent = send_message(g_session.fd(), op, g_serial, body, bytes, fds);
    if (!sent && (sent.error() == EPIPE || sent.error() == ECONNRESET)) lost();
    return sent.ok();
}

// [g_lock]
Status ask(Op op, const void* body, size_t bytes, std::span<const int> fds, Reply* answer = nullptr,
           Fds* with = nullptr) {
    if (!tell(op, body, bytes, fds)) return Errno{EPERM};
    const uint32_t serial = g_serial;
    for (;;) {
        if (!wait_readable(g_session.fd(), kAnswerMs)) {
            lost();
            return Errno{ETIMEDOUT};
        }
        alignas(8) uint8_t buffer[sizeof(Head) + sizeof(Reply)];
        Fds own;
        Fds& received = with ? *with : own;
        const auto n = receive_packet(g_session.fd(), buffer, received);
        if (!n && (n.error() == EAGAIN || n.error() == EINTR)) continue;
        Body reply;
        const auto head =
            n && *n ? decode({buffer, *n}, received.count(), reply) : Result<Head>(Errno{EPIPE});
        if (!head || head->op != Op::reply) {
            lost();
            return Errno{EPERM};
        }
        if (head->serial != serial) continue;  // of a request that was given up
        if (reply.reply.error) return Errno{reply.reply.error};
        if (answer) *answer = reply.reply;
        return {};
    }
}

// `options`: read for finish, written for restore.
Status with_queues(Op op, int fd, const tcp::Snapshot& s, const RepairQueues& q,
                   RepairOptions& options) {
    Repair body;
    body.image.snapshot = to_wire(s);
    if (op == Op::finish) body.image.options = options;
    body.unacked = uint32_t(q.unacked.size());
    body.unsent = uint32_t(q.unsent.size());
    body.unread = uint32_t(q.unread.size());
    int fds[2] = {fd, -1};
    unsigned count = 1;
    if (q.unacked.size() + q.unsent.size() + q.unread.size()) {
        const ByteView queues[] = {q.unacked, q.unsent, q.unread};
        fds[1] = memory_file("vma-queues", queues);
        if (fds[1] < 0) return Errno{-fds[1]};
        count = 2;
    }
    Reply reply;
    Status done;
    {
        std::lock_guard guard(g_lock);
        done = ask(op, &body, sizeof body, {fds, count}, &reply);
    }
    if (fds[1] >= 0) sys::close(fds[1]);
    if (done && op == Op::restore) options = reply.image.options;
    return done;
}

Status with_image(Op op, int fd, const RepairImage& image) {
    Repair body;
    body.image = to_wire(image);
    std::lock_guard guard(g_lock);
    return ask(op, &body, sizeof body, {&fd, 1});
}

Status read_file(int fd, ByteSpan to) {
    for (size_t done = 0; done < to.size();) {
        const long n = sys::raw(SYS_pread64, fd, sys::ptr(to.data() + done), long(to.size() - done),
                                long(done));
        if (n <= 0) return Errno{n == 0 ? EIO : int(-n)};
        done += size_t(n);
    }
    return {};
}

bool adopt_door(int door) {
    if (!g_door.adopt(door)) return false;
    g_door_open.store(true, std::memory_order_release);
    return true;
}

// A process that has no privileges asks the host's broker, once. [g_lock]
bool ask_host() {
    if (std::exchange(g_asked_host, true)) return false;
    const auto door = knock_at_host_broker();
    if (door) return g_hosts = adopt_door(*door);
    if (door.error() != ENOENT && door.error() != ECONNREFUSED)
        vma_log(info, "broker", "the broker of this host does not serve this process (errno {})",
                door.error());
    return false;
}

}  // namespace

void configure(const ClientConfig& config) { g_config = config; }

bool start() {
    if (g_door_open.load(std::memory_order_acquire)) return true;
    std::lock_guard guard(g_lock);
    if (g_door_open.load(std::memory_order_relaxed)) return true;
    if (!g_config.enabled || g_tried) return false;
    // Who runs with another user's rights is not asked.
    if (sys::raw(SYS_getuid) != sys::raw(SYS_geteuid)) return false;
    if (!has_net_admin_of_host()) return ask_host();
    g_tried = true;
    char path[4096];
    if (!find_broker(g_config.path, path, sizeof path)) {
        vma_log(info, "broker",
                "no broker (vmad is neither installed with the library nor where VMA_BROKER_PATH "
                "says): "
                "connections of this process are reset if it is killed, and after it has given up "
                "its privileges they cannot go back to the kernel");
        return false;
    }
    const auto door = spawn_broker(path, program_invocation_short_name);
    if (!door) {
        vma_log(info, "broker", "the broker {} could not be started (errno {})", path,
                door.error());
        return false;
    }
    return adopt_door(*door);
}

bool reachable() {
    if (!g_door_open.load(std::memory_order_acquire)) return false;
    std::lock_guard guard(g_lock);
    return session();
}

bool bereft() {
    if (g_bereft.load(std::memory_order_relaxed)) return true;
    if (!g_door_open.load(std::memory_order_acquire)) return false;
    std::lock_guard guard(g_lock);
    // Between requests there is nothing to read but an answer that nobody waited for, and its end.
    if (g_kept && g_session.valid() && g_session_pid == self() && has_ended(g_session.fd())) lost();
    return g_bereft.load(std::memory_order_relaxed);
}

bool is_watched() {
    if (!g_door_open.load(std::memory_order_acquire)) return false;
    std::lock_guard guard(g_lock);
    return g_session.valid() && g_session_pid == self() && !has_ended(g_session.fd());
}

Status come_back(std::span<const OwnRing> rings, std::span<const int> listeners) {
    const auto door = knock_at_host_broker();
    if (!door) return Errno{door.error()};
    std::lock_guard guard(g_lock);
    if (!g_door.adopt(*door)) return Errno{EMFILE};
    // Nobody else gets in before the rings are shown: whoever has it steered before that would be refused.
    g_door_open.store(true, std::memory_order_relaxed);
    size_t shown = 0;
    for (const OwnRing& ring : rings)
        shown += ask(Op::show_ring, &ring.facts, sizeof ring.facts, {&ring.doorbell, 1}).ok();
    for (const int fd : listeners) (void)ask(Op::prove, nullptr, 0, {&fd, 1});
    if (!g_door_open.load(std::memory_order_relaxed)) return Errno{EPERM};
    if (shown == 0 && !rings.empty()) {
        lost();
        return Errno{EACCES};
    }
    g_hosts = true;
    g_said = false;
    g_bereft = false;
    return {};
}

Status restore(int fd, const tcp::Snapshot& s, const RepairQueues& q, RepairOptions& saved) {
    if (!g_door_open.load(std::memory_order_acquire)) return Errno{EPERM};
    return with_queues(Op::restore, fd, s, q, saved);
}
Status finish(int fd, const tcp::Snapshot& s, const RepairQueues& q, const RepairOptions& saved) {
    RepairOptions options = saved;
    return with_queues(Op::finish, fd, s, q, options);
}
void cancel(int fd, const RepairOptions& saved) {
    Repair body;
    body.image.options = saved;
    std::lock_guard guard(g_lock);
    (void)ask(Op::cancel, &body, sizeof body, {&fd, 1});
}
Status checkpoint(int fd, RepairImage& image, ByteSpan room) {
    if (!g_door_open.load(std::memory_order_acquire)) return Errno{EPERM};
    const Repair body;
    Reply reply;
    Fds bytes;
    {
        std::lock_guard guard(g_lock);
        const Status done = ask(Op::checkpoint, &body, sizeof body, {&fd, 1}, &reply, &bytes);
        if (!done) return done;
    }
    const auto got = from_wire(reply.image);
    if (!got) return Errno{EPROTO};
    image = *got;
    const size_t total = size_t(image.to_send) + image.snapshot.unread;
    Status read;
    if (total > room.size())
        read = Errno{ENOBUFS};
    else if (total)
        read = read_file(bytes[0], room.first(total));
    if (!read) resume(fd, image);
    return read;
}
void resume(int fd, const RepairImage& image) { (void)with_image(Op::resume, fd, image); }
Status release(int fd, const RepairImage& image) { return with_image(Op::release, fd, image); }

Status open_ring(const OpenRing& request, OpenedRing& out) {
    if (!g_door_open.load(std::memory_order_acquire)) return Errno{g_kept ? ENOLINK : EPERM};
    std::lock_guard guard(g_lock);
    // That of the host has done nothing for this process before it has opened a ring.
    g_kept |= !g_hosts;
    Reply reply;
    Fds fds;
    const Status done = ask(Op::open_ring, &request, sizeof request, {}, &reply, &fds);
    if (!done) return g_door_open.load() ? done : Status(Errno{g_kept ? ENOLINK : EPERM});
    g_kept = true;
    if (fds.count() != kRingFds) return Errno{EPROTO};
    for (unsigned i = 0; i < kRingFds; i++) out.fds[i] = fds.take(i);
    out.slot = reply.slot;
    out.token = reply.token;
    return {};
}

Status show_ring(const ShowRing& ring, int doorbell) {
    if (!g_door_open.load(std::memory_order_acquire)) return Errno{ENOLINK};
    std::lock_guard guard(g_lock);
    const Status done = ask(Op::show_ring, &ring, sizeof ring, {&doorbell, 1});
    if (done) g_kept = true;
    return done;
}

Status steer(const Steer& flow, int twin) {
    if (!g_door_open.load(std::memory_order_acquire)) return Errno{ENOLINK};
    if (!can_be_asked(flow)) return Errno{EINVAL};
    std::lock_guard guard(g_lock);
    const Status done = ask(Op::steer, &flow, sizeof flow, {&twin, 1});
    return done || g_door_open.load() ? done : Status(Errno{ENOLINK});
}

void unsteer(const Steer& flow) {
    if (!g_door_open.load(std::memory_order_acquire) || !can_be_asked(flow)) return;
    std::lock_guard guard(g_lock);
    tell(Op::unsteer, &flow, sizeof flow);
}

Status share(int link) {
    if (!g_door_open.load(std::memory_order_acquire)) return Errno{EPERM};
    std::lock_guard guard(g_lock);
    if (!g_hosts) return Errno{EPERM};
    const Status done = ask(Op::share, nullptr, 0, {&link, 1});
    if (done) g_kept = true;
    return done;
}

Status publish(const Endpoint& local) {
    if (!g_door_open.load(std::memory_order_acquire)) return Errno{EPERM};
    Publish body;
    body.local = to_wire(local);
    std::lock_guard guard(g_lock);
    return ask(Op::publish, &body, sizeof body, {});
}

Status watch(const Watch& watch, int arena_memfd) {
    std::lock_guard guard(g_lock);
    return ask(Op::watch, &watch, sizeof watch, {&arena_memfd, 1});
}

size_t hold(std::span<const Held> items, std::span<const int> twins) {
    if (!g_door_open.load(std::memory_order_acquire)) return 0;
    std::lock_guard guard(g_lock);
    static HeldList list;  // too large for the stack of whoever forks; under the lock
    size_t done = 0;
    while (done < items.size()) {
        const size_t n = std::min<size_t>(items.size() - done, kMostFds);
        list.count = uint32_t(n);
        std::memcpy(static_cast<void*>(list.items), &items[done], n * sizeof(Held));
        if (!tell(Op::hold, &list, HeldList::bytes(uint32_t(n)), twins.subspan(done, n))) break;
        done += n;
    }
    return done;
}

void drop(const Held& item) {
    if (!g_door_open.load(std::memory_order_acquire)) return;
    std::lock_guard guard(g_lock);
    struct {
        uint32_t count = 1, zero = 0;
        Held item;
    } one;
    one.item = item;
    one.item.share = 0;
    tell(Op::drop, &one, sizeof one);
}

void prove(int fd) {
    if (!g_door_open.load(std::memory_order_acquire)) return;
    std::lock_guard guard(g_lock);
    (void)ask(Op::prove, nullptr, 0, {&fd, 1});
}

void drop_privileges() {
    std::lock_guard guard(g_lock);
    tell(Op::drop_privileges, nullptr, 0);
}

void leaving(bool leaves) {
    if (!g_door_open.load(std::memory_order_acquire)) return;
    std::lock_guard guard(g_lock);
    if (g_session.valid()) tell(leaves ? Op::leaving : Op::staying, nullptr, 0);
}

int keep_door_in_child() {
    return g_door.valid() ? sys::fcntl(g_door.fd(), F_DUPFD_CLOEXEC, 3) : -1;
}

void forget_in_child(int kept_door) {
    new (&g_lock) std::mutex;
    g_session.reset();
    g_door.reset();
    const bool open = kept_door >= 0 && g_door.adopt(kept_door).ok();
    g_door_open = open;
    g_tried = g_asked_host = g_kept = false;
    g_bereft = false;
}

void close() {
    std::lock_guard guard(g_lock);
    g_session.reset();
    g_door.reset();
    g_door_open = false;
    g_bereft = false;
}

}  // namespace vma::broker
