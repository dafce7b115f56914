#include "sock/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>

#include <new>
#include <vector>

#include "base/clock.h"
#include "base/own_fd.h"
#include "base/process.h"
#include "broker/client.h"
#include "engine/internal_thread.h"
#include "engine/runtime.h"
#include "sock/broker_link.h"
#include "sock/epoll.h"
#include "sock/fd_table.h"
#include "sock/handover.h"
#include "sock/screen.h"
#include "sock/stats_rows.h"
#include "sock/tcp_socket.h"
#include "sock/thread_offload.h"
#include "sock/udp_socket.h"
#include "sock/walk.h"

namespace vma::sock {
namespace {

// How long a child waits for its parent's answer. A parent that is stopped (SIGSTOP, debugger) must not hang the child for
// ever; afterwards the child uses the twin all the same.
constexpr Duration kOwnerAnswers = Duration::seconds(1);
// How long it waits for the broker, once the parent is dead.
constexpr Duration kBrokerAnswers = Duration::seconds(5);

// Set in the parent before fork, in the child's copy afterwards: a descriptor of the parent's control eventfd that survives
// own_fds_close_in_child.
OwnFd g_parent_control;
std::atomic<uint32_t> g_forks{0};

// The twins of connections that the child will share: if this process is killed, the broker restores into these.
void give_custody() {
    std::vector<broker::Held> items;
    std::vector<int> twins;
    for_each_own_socket([&](Socket& socket, int) {
        broker::Held held;
        int twin = -1;
        if (socket.kind != ObjectKind::tcp ||
            !static_cast<TcpSocket&>(socket).shared_with_child(held, twin))
            return;
        items.push_back(held);
        twins.push_back(twin);
    });
    broker::hold(items, twins);
}

}  // namespace

uint32_t forks_so_far() { return g_forks.load(std::memory_order_relaxed); }

bool Socket::share_answered() const {
    const ShareRecord* record = share();
    return record == nullptr ||  // another thread has settled it
           record->serial.load(std::memory_order_acquire) != share_serial_ ||
           record->done.load(std::memory_order_acquire) != ShareRecord::kOpen;
}

// With the serial number: the words may have another socket by now, which nobody asks for.
bool Socket::ask_share() const {
    ShareRecord* record = share();
    return record != nullptr && record->request.exchange(share_serial_ + 1) != share_serial_ + 1;
}

bool Socket::share_asked() const {
    const ShareRecord* record = share();
    return record != nullptr &&
           record->request.load(std::memory_order_acquire) == share_serial_ + 1 &&
           record->done.load(std::memory_order_relaxed) == ShareRecord::kOpen;
}

void Socket::take_share(Shard& shard) {
    if (share()) return;
    auto* record = shard.take_record<ShareRecord>();
    if (record == nullptr) return;
    record->shard = &shard;
    record->forks = forks_so_far();
    record->owner_pid.store(uint32_t(sys::getpid()), std::memory_order_relaxed);
    record->request.store(0, std::memory_order_relaxed);
    record->done.store(ShareRecord::kOpen, std::memory_order_relaxed);
    share_serial_ = record->serial.load(std::memory_order_relaxed);
    share_.store(record, std::memory_order_release);
}

// The serial number first: a child that waits for this socket must not take the next one's "not yet" for its own.
void Socket::give_share() {
    ShareRecord* record = share_.exchange(nullptr);
    if (record == nullptr) return;
    record->serial.fetch_add(1, std::memory_order_release);
    record->done.store(ShareRecord::kDone, std::memory_order_release);
    sys::futex(reinterpret_cast<volatile uint32_t*>(&record->done), 1 /* FUTEX_WAKE */, INT32_MAX);
    Shard& shard = *record->shard;
    LeaseGuard lease(shard.lease());
    shard.give_record(record);
}

void Socket::answer_share(bool moved) {
    ShareRecord* record = share();
    if (record == nullptr) return;
    record->request.store(0, std::memory_order_relaxed);
    record->done.store(moved ? ShareRecord::kDone : ShareRecord::kRefused,
                       std::memory_order_release);
    sys::futex(reinterpret_cast<volatile uint32_t*>(&record->done), 1 /* FUTEX_WAKE */, INT32_MAX);
}

void Socket::reopen_share() {
    if (ShareRecord* record = share()) record->done.store(ShareRecord::kOpen);
}

void fork_in_parent_before(bool only_exec) {
    g_forks.fetch_add(1, std::memory_order_relaxed);
    for_each_own_socket([&](Socket& socket, int) {
        if (socket.kind == ObjectKind::tcp) static_cast<TcpSocket&>(socket).prepare_fork(only_exec);
    });
    // A child that only execs uses none of them.
    if (!only_exec && broker::reachable()) give_custody();
}

void fork_in_child() {
    const int control = InternalThread::control_fd();
    const int door = broker::keep_door_in_child();
    Handover::keep_in_child();
    const int kept = control >= 0 ? sys::fcntl(control, F_DUPFD_CLOEXEC, 3) : -1;
    own_fds_close_in_child();
    FdTable::forget_lock_in_child();
    Visit::forget_in_child();
    ThreadSleep::forget_in_child();
    TwinEvents::forget_in_child();
    udp_forget_in_child();
    tcp_forget_in_child();
    epoll_forget_in_child();
    thread_offload_forget_in_child();
    Screens::forget_in_child();
    Xtreme::forget_in_child();
    stats_forget_in_child();
    broker_forget_in_child(door);
    Runtime::forget_in_child();
    g_parent_control.reset();
    if (kept >= 0 && !g_parent_control.adopt(kept)) g_parent_control.reset();
    FdTable::for_each([](int, Object* object) {
        object->inherited.store(true, std::memory_order_relaxed);
        static_cast<Pollable*>(object)->forget_locks_in_child();
        if (object->kind == ObjectKind::epoll)
            static_cast<Epoll*>(static_cast<Pollable*>(object))->forget_waits_in_child();
        // In-flight references of threads that do not exist here would keep the record for ever.
        object->refs.store(0, std::memory_order_relaxed);
    });
    FdTable::for_each(
        [](int, Object* object) { object->refs.fetch_add(1, std::memory_order_relaxed); });
}

void inherit(Object& object) {
    if (!object.inherited.load(std::memory_order_acquire)) return;
    if (object.kind == ObjectKind::epoll) {
        // Its kernel set is shared with the parent: members of ours must be in it for this process too.
        auto& epoll = static_cast<Epoll&>(object);
        object.inherited.store(false, std::memory_order_release);
        epoll.for_each_member([](Pollable& member) { inherit(member); });
        return;
    }
    auto& socket = static_cast<Socket&>(static_cast<Pollable&>(object));
    ShareRecord* share = socket.share();
    if (socket.state() == SocketState::offloaded && share != nullptr) {
        Instant deadline = monotonic_now() + kOwnerAnswers;
        bool orphaned = false;
        // What another child was refused may be possible now.
        uint32_t refused = ShareRecord::kRefused;
        share->done.compare_exchange_strong(refused, ShareRecord::kOpen);
        while (!socket.share_answered() && monotonic_now() < deadline) {
            if (!orphaned && !process_alive(share->owner_pid.load(std::memory_order_relaxed), 0)) {
                // Only the broker can still give the connection to this process.
                if (!broker::reachable()) break;
                orphaned = true;
                deadline = monotonic_now() + kBrokerAnswers;
            }
            // Again if an answer to somebody else has taken it away.
            const uint64_t one = 1;
            if (socket.ask_share() && g_parent_control.valid())
                sys::write(g_parent_control.fd(), &one, sizeof one);
            const timespec slice{0, 10'000'000};
            sys::futex(reinterpret_cast<volatile uint32_t*>(&share->done), 0 /* FUTEX_WAIT */, 0,
                       &slice);
        }
    }
    socket.become_twin_in_child();
    object.inherited.store(false, std::memory_order_release);
}

void serve_children() {
    if (g_forks.load(std::memory_order_relaxed) == 0) return;
    for_each_own_socket([](Socket& socket, int) {
        if (!socket.share_asked()) return;
        socket.answer_share(socket.hand_back(Reason::fork));
    });
}

}  // namespace vma::sock
