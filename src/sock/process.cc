// The process as a whole at the boundary to intercept (api.h): its start, fork, exec, filters, changes of rights, its end.
#include "sock/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/auxv.h>

#include <climits>
#include <cstdlib>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "broker/client.h"
#include "sock/broker_link.h"
#include "sock/cross.h"
#include "sock/fd_table.h"
#include "sock/follow.h"
#include "sock/fork.h"
#include "sock/handover.h"
#include "sock/stats_rows.h"
#include "sock/tcp_socket.h"
#include "sock/udp_socket.h"
#include "sock/walk.h"
#include "stats/publisher.h"

namespace vma::sock {
namespace {

class Sink final : public ReadySink {
  public:
    void udp_ready(UdpEndpoint& endpoint) override {
        if (endpoint.owner) static_cast<UdpSocket*>(endpoint.owner)->ring_ready(endpoint);
    }
    void udp_writable(UdpEndpoint& endpoint) override {
        if (endpoint.owner) static_cast<UdpSocket*>(endpoint.owner)->ring_writable();
    }
    void udp_stamped(UdpEndpoint& endpoint) override {
        if (endpoint.owner) static_cast<UdpSocket*>(endpoint.owner)->ring_stamped(endpoint);
    }
};
Sink g_sink;
// Listeners whose connections waited when a filter came; nothing of ours is in the descriptor table then.
class AfterFilter {
  public:
    void add(int fd, Handover* handover) {
        if (count_ < Handover::kMost) entries_[count_++] = {fd, handover};
    }
    Handover* find(int fd) const {
        for (unsigned i = 0; i < count_; i++)
            if (entries_[i].fd == fd && entries_[i].handover->has_kept())
                return entries_[i].handover;
        return nullptr;
    }

  private:
    struct Entry {
        int fd;
        Handover* handover;
    };
    Entry entries_[Handover::kMost];
    unsigned count_ = 0;
};
AfterFilter g_after_filter;
// seccomp, io_uring: new sockets stay with the kernel
std::atomic<Reason> g_pass_through{Reason::none};

// Under a system call filter nothing of ours runs: one call that it does not know may end the program. /proc because the
// loader has just made the same calls; a filter may forbid prctl().
bool filtered_from_the_start() {
    const int fd = int(
        sys::raw(SYS_openat, AT_FDCWD, sys::ptr("/proc/thread-self/status"), O_RDONLY | O_CLOEXEC));
    if (fd < 0) return false;
    char text[4096];
    const ssize_t n = sys::read(fd, text, sizeof text);
    sys::close(fd);
    const std::string_view status(text, n > 0 ? size_t(n) : 0);
    constexpr std::string_view kLabel = "\nSeccomp:\t";
    const size_t at = status.find(kLabel);
    return at != status.npos && at + kLabel.size() < status.size() &&
           status[at + kLabel.size()] != '0';
}

void tick() {
    serve_children();
    tcp_hand_over_late();
    cross_tick();
    follow_network();
    broker_tick();
    stats_tick();
}

// What was inherited across a fork and is wanted(fd) becomes the kernel's now instead of at its first use.
template <class Wanted>
void settle_inherited(Wanted&& wanted) {
    for_each_socket([&](Socket& socket, int fd) {
        if (socket.inherited.load(std::memory_order_acquire) && wanted(fd)) inherit(socket);
    });
}

// fn(const Handover&, int fd) for each listener that has one.
template <class Fn>
void for_each_handover(Fn&& fn) {
    for_each_object([&](Object& object, int fd) {
        inherit(object);
        if (object.kind != ObjectKind::tcp) return;
        if (const Handover* const handover = static_cast<TcpSocket&>(object).handed_over())
            fn(*handover, fd);
    });
}

}  // namespace

Reason why_pass_through() { return g_pass_through.load(std::memory_order_relaxed); }
Handover* kept_after_filter(int listener) { return g_after_filter.find(listener); }

bool start(bool secure) {
    if (FdTable::retired()) return false;
    static std::atomic<bool> looked{false};
    if (!looked.exchange(true)) {
        if (filtered_from_the_start()) {
            FdTable::retire();
            if (Runtime::start(secure))
                vma_log(info, "sock",
                        "a system call filter is in force: sockets stay with the kernel");
            return false;
        }
        // Set-user-id: more rights than the caller has, who chose our settings. File capabilities come without that.
        if (getauxval(AT_UID) != getauxval(AT_EUID) || getauxval(AT_GID) != getauxval(AT_EGID))
            g_pass_through.store(Reason::secure_execution);
    }
    if (!Runtime::start(secure)) return false;
    stats_start(program_invocation_short_name);
    Shard::set_sink(&g_sink);
    TcpEngine::set_sink(&tcp_sink());
    cross_start();
    Runtime::set_tick(tick);
    broker_configure();
    const bool started = FdTable::start();
    stats::set_descriptors(fd_slots.size.load(std::memory_order_relaxed));
    return started;
}

void io_uring_seen() {
    if (g_pass_through.exchange(Reason::io_uring) != Reason::none) return;
    vma_log(info, "sock", "the program uses io_uring: its sockets stay with the kernel");
    for_each_own_socket([](Socket& socket, int) { (void)socket.hand_back(Reason::io_uring); });
}

void fork_prepare(bool only_exec) { fork_in_parent_before(only_exec); }
void fork_parent(pid_t) {}
void fork_child() { fork_in_child(); }

// A connection whose descriptor closes on exec goes, too: what was written to it is still to arrive.
void exec_prepare() {
    const auto survives = [](int fd) {
        const int flags = sys::fcntl(fd, F_GETFD);
        return flags >= 0 && !(flags & FD_CLOEXEC);
    };
    settle_inherited(survives);
    for_each_own_socket([&](Socket& socket, int fd) {
        const bool crossing =
            socket.kind == ObjectKind::tcp && static_cast<TcpSocket&>(socket).crossing();
        if ((socket.state() == SocketState::offloaded || crossing) &&
            (socket.kind == ObjectKind::tcp || survives(fd)))
            (void)socket.hand_back(Reason::exec);
    });
    if (!Runtime::shards().empty()) {
        // What waits for its time in a process that ends leaves now.
        for (Shard* shard : Runtime::shards()) {
            LeaseGuard guard(shard->lease());
            shard->pacing().flush_all(monotonic_now());
        }
        tcp_orphans_to_kernel();
        tcp_drain_orphans(Duration::seconds(60));
    }
    broker::leaving(true);
    stats::withdraw(false);
}

bool exec_inheritance(bool wanted, char* line, size_t room) {
    size_t used = 0;
    bool full = false;
    for_each_handover([&](const Handover& handover, int fd) {
        const int flags = sys::fcntl(fd, F_GETFD);
        if (full || flags < 0 || (flags & FD_CLOEXEC)) return;
        if (!wanted) {
            vma_log(warning, "sock",
                    "fd {}: the program that is started does not load this library: connections "
                    "that wait to be accepted are closed",
                    fd);
            return;
        }
        const auto end =
            fmt::format_to_n(line + used, room - used, "{}{}:{}",
                             used ? "," : std::string_view(kInheritance), fd, handover.reader());
        full = used + end.size >= room;
        if (full) return;
        used += end.size;
        sys::fcntl(handover.reader(), F_SETFD, 0);
    });
    if (used) line[used] = 0;
    return used != 0;
}

void exec_inherited(const char* text) {
    for (char* end = nullptr; *text; text = *end == ',' ? end + 1 : end) {
        const long fd = std::strtol(text, &end, 10);
        if (end == text || *end != ':') return;
        text = end + 1;
        const long reader = std::strtol(text, &end, 10);
        if (end == text || fd < 0 || reader < 0 || fd > INT_MAX || reader > INT_MAX) return;
        TcpSocket::inherited_by_exec(int(fd), int(reader));
    }
}

void exec_failed() {
    for_each_handover(
        [](const Handover& handover, int) { sys::fcntl(handover.reader(), F_SETFD, FD_CLOEXEC); });
    broker::leaving(false);
    stats_republish();
}

void exit_prepare() {
    if (FdTable::retired()) return;  // a filter may forbid what follows
    if (Runtime::started() && !Runtime::shards().empty()) {
        // What was written and not acknowledged still goes out: connections move into the kernel, which sees them through.
        // Those that cannot (no capability) are closed here and waited for.
        for_each_own_socket([](Socket& socket, int) {
            socket.tell_what_it_did();
            if (socket.kind == ObjectKind::tcp && socket.state() == SocketState::offloaded &&
                (static_cast<TcpSocket&>(socket).outlives_the_process() ||
                 !socket.hand_back(Reason::exiting)))
                socket.teardown();
            // Datagrams that wait here are a child's to read, if there is one.
            if (socket.kind == ObjectKind::udp && forks_so_far() != 0 &&
                socket.state() == SocketState::offloaded)
                (void)socket.hand_back(Reason::exiting);
        });
        tcp_orphans_to_kernel();
        tcp_drain_orphans(Duration::seconds(60));
        stats_report_memory();
        Runtime::stop();
    }
    stats_end();
    stats::withdraw(true);
}

// From here on no hook does more than libc: the filter may end the process for a call that the program never makes.
void seccomp_prepare() {
    if (FdTable::retired()) return;
    g_pass_through.store(Reason::seccomp);
    if (!Runtime::started()) return FdTable::retire();
    settle_inherited([](int) { return true; });
    bool all = true;
    for_each_own_socket([&](Socket& socket, int fd) {
        (void)socket.hand_back(Reason::seccomp);
        if (socket.kind == ObjectKind::tcp) {
            auto& tcp = static_cast<TcpSocket&>(socket);
            tcp.drop_waiting(Reason::seccomp);
            if (Handover* const handover = tcp.handed_over()) {
                handover->keep_here();
                g_after_filter.add(fd, handover);
            }
        }
        all &= socket.state() == SocketState::kernel;
    });
    if (!all) {
        vma_log(warning, "sock",
                "a system call filter is about to be installed and some sockets cannot move to the "
                "kernel: they end if it forbids what the library needs");
        return;
    }
    if (!Runtime::shards().empty()) tcp_orphans_to_kernel();
    Runtime::stop();
    FdTable::retire();
}

void setid_prepare() { broker_before_drop(); }

// An accepted socket is of its listener's namespace, and only the kernel can make one there when this thread has left it.
void netns_changed() {
    for_each_own_socket([](Socket& socket, int) {
        if (socket.kind == ObjectKind::tcp)
            static_cast<TcpSocket&>(socket).listener_to_kernel(Reason::network_namespace);
    });
}

int release() {
    if (!Runtime::started()) return -1;
    for_each_own_socket([](Socket& socket, int) { (void)socket.hand_back(Reason::exiting); });
    Runtime::stop();
    stats::withdraw(true);
    return 0;
}

}  // namespace vma::sock
