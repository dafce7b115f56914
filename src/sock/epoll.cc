#include "sock/epoll.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <new>

#include "base/clock.h"
#include "base/deferred_signal.h"
#include "base/own_fd.h"
#include "sock/epoll_order.h"
#include "sock/fd_table.h"
#include "sock/screen.h"
#include "sock/slab.h"
#include "sock/udp_socket.h"

namespace vma::sock {
namespace {

Slab<Epoll> g_epolls;
Slab<EpollItem> g_items;

constexpr uint32_t kAlwaysReported = EPOLLERR | EPOLLHUP;
constexpr uint32_t kModifiers = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;
// What EPOLLEXCLUSIVE may stand with (epoll_ctl(2)).
constexpr uint32_t kWithExclusive =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;

}  // namespace

Epoll* Epoll::create() {
    bool recycled;
    void* memory = g_epolls.take(&recycled);
    return memory ? new (memory) Epoll : nullptr;
}

void Epoll::destroy(Epoll* epoll) {
    for (;;) {
        EpollItem* item;
        {
            SpinGuard guard(epoll->ctl_lock_);
            item = epoll->members_.front();
            if (item == nullptr) break;
            item->member->watch.remove(*item);
            item->member_hook.unlink();
        }
        epoll->take_down(item);
    }
    forget_member(*epoll);
    stats::remove_wait(epoll->row_);
    delete epoll->order_memory_.exchange(nullptr);
    g_epolls.give(epoll);
}

void Epoll::forget_locks_in_child() {
    Pollable::forget_locks_in_child();
    new (&ctl_lock_) SpinLock;
    new (&ready_lock_) SpinLock;
}

void Epoll::forget_waits_in_child() {
    kernel_waits_.store(0, std::memory_order_relaxed);
    lost_waits_.store(0, std::memory_order_relaxed);
}

void Epoll::descriptor_closed(int closed) {
    if (fd() != closed || refs.load(std::memory_order_relaxed) == 1) return;
    FdTable::for_each([&](int other, Object* object) {
        if (object == this && other != closed) set_fd(other);
    });
}

// Threads that wait in the kernel set alone do not see a member of ours that is added meanwhile. A descriptor that is always
// readable, put into the kernel set, brings them back; its event is told by the address of g_call, which no program has.
namespace {
OwnFd g_call;
SpinLock g_call_lock;
uint64_t call_mark() { return reinterpret_cast<uint64_t>(&g_call); }
}  // namespace

void Epoll::call_kernel_waits() {
    if (kernel_waits_.load(std::memory_order_seq_cst) <=
        lost_waits_.load(std::memory_order_relaxed))
        return;
    {
        SpinGuard guard(g_call_lock);
        if (!g_call.valid()) {
            const int fd = sys::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
            if (fd < 0 || !g_call.adopt(fd)) return;
        }
    }
    if (calling_.exchange(true, std::memory_order_seq_cst)) return;
    called_at_ns_.store(monotonic_now().ns, std::memory_order_relaxed);
    epoll_event event{EPOLLIN, {.u64 = call_mark()}};
    sys::epoll_ctl(fd(), EPOLL_CTL_ADD, g_call.fd(), &event);
}

void Epoll::end_call() {
    epoll_event unused{};
    if (!calling_.load(std::memory_order_seq_cst)) return;
    sys::epoll_ctl(fd(), EPOLL_CTL_DEL, g_call.fd(), &unused);
    calling_.store(false, std::memory_order_seq_cst);
}

void Epoll::unpin_in_kernel() {
    const uint32_t left = kernel_waits_.fetch_sub(1, std::memory_order_seq_cst) - 1;
    if (left <= lost_waits_.load(std::memory_order_relaxed)) end_call();
}

// A thread that left its wait by longjmp or cancellation is counted for ever: after a second everybody who still waits has come.
int Epoll::past_call(epoll_event* events, int n) {
    const int left = without_call(events, n);
    constexpr Duration kPatience = Duration::seconds(1);
    if (left != n &&
        monotonic_now().ns - called_at_ns_.load(std::memory_order_relaxed) > kPatience.ns) {
        lost_waits_.store(kernel_waits_.load(std::memory_order_seq_cst), std::memory_order_relaxed);
        end_call();
    }
    return left;
}

int Epoll::without_call(epoll_event* events, int n) {
    if (!g_call.valid()) return n;
    for (int i = 0; i < n; i++)
        if (events[i].data.u64 == call_mark()) {
            for (int k = i + 1; k < n; k++) events[k - 1] = events[k];
            return n - 1;
        }
    return n;
}

void epoll_forget_in_child() {
    g_call.reset();
    new (&g_call_lock) SpinLock;
    g_epolls.forget_lock_in_child();
    g_items.forget_lock_in_child();
}

void epoll_item_changed(EpollItem& item, uint32_t events) {
    if (item.epoll->queue(item, events)) item.epoll->watch.notify(EPOLLIN | EPOLLRDNORM);
}

bool Epoll::queue(EpollItem& item, uint32_t events) {
    SpinGuard guard(ready_lock_);
    if (item.in_kernel) return true;
    if (!(item.events & events & ~kModifiers)) return false;
    if (!item.ready_hook.linked()) ready_.push_back(item);
    return true;
}

uint32_t Epoll::poll_events() {
    SpinGuard guard(ready_lock_);
    for (EpollItem* item = ready_.front(); item; item = ready_.next(*item))
        if (item->member->poll_events() & item->events) return EPOLLIN | EPOLLRDNORM;
    return 0;
}

void Epoll::add_lanes(uint64_t lanes) {
    if ((lanes & ~lanes_.fetch_or(lanes, std::memory_order_acq_rel)) == 0) return;
    watch.notify(0);
    follow_lanes(*this);
}

void Epoll::follow_lanes(Pollable& member) {
    if (!member.watch.watched()) return;
    const uint64_t lanes = member.lanes();
    member.watch.find_item([lanes](EpollItem& item) {
        item.epoll->add_lanes(lanes);
        return false;
    });
}

EpollItem* Epoll::find(Pollable& member, int fd) {
    return member.watch.find_item(
        [&](EpollItem& item) { return item.epoll == this && item.fd == fd; });
}

void Epoll::take_down(EpollItem* item) {
    {
        SpinGuard guard(ready_lock_);
        item->ready_hook.unlink();
    }
    if (!item->in_kernel || item->prepared) member_count_.fetch_sub(1, std::memory_order_relaxed);
    item_count_.fetch_sub(1, std::memory_order_relaxed);
    g_items.give(item);
}

// Under ctl_lock_.
EpollItem* Epoll::make_item(Pollable& member, int fd, const epoll_event& event, bool in_kernel) {
    bool recycled;
    void* memory = g_items.take(&recycled);
    if (memory == nullptr) return nullptr;
    auto* item = new (memory) EpollItem;
    item->epoll = this;
    item->member = &member;
    item->fd = fd;
    item->in_kernel = in_kernel;
    item->events = event.events | kAlwaysReported;
    item->data = event.data.u64;
    members_.push_back(*item);
    item_count_.fetch_add(1, std::memory_order_relaxed);
    if (!in_kernel) member_count_.fetch_add(1, std::memory_order_seq_cst);
    member.watch.add(*item);
    return item;
}

int Epoll::control_in_kernel(int op, int fd, Pollable& member, epoll_event* event) {
    const int result = sys::epoll_ctl(this->fd(), op, fd, event);
    if (result < 0) return -result;
    kernel_member_added();
    SpinGuard guard(ctl_lock_);
    EpollItem* const item = find(member, fd);
    if (op == EPOLL_CTL_ADD && item == nullptr) {
        if (make_item(member, fd, *event, true)) return 0;
        sys::epoll_ctl(this->fd(), EPOLL_CTL_DEL, fd, event);
        return ENOMEM;
    }
    if (item == nullptr) return 0;
    if (op == EPOLL_CTL_DEL) {
        member.watch.remove(*item);
        item->member_hook.unlink();
        take_down(item);
    } else {
        item->events = event->events;
        item->data = event->data.u64;
    }
    return 0;
}

int Epoll::control(int op, int fd, Pollable& member, const epoll_event* event) {
    if (event && op == EPOLL_CTL_ADD && (event->events & EPOLLEXCLUSIVE) &&
        ((event->events & ~kWithExclusive) || member.kind == ObjectKind::epoll))
        return EINVAL;
    if (op == EPOLL_CTL_ADD && member.kind == ObjectKind::udp) {
        auto& socket = static_cast<UdpSocket&>(member);
        if (socket.state() == SocketState::undecided) socket.settle(fd, false);
        if (socket.state() == SocketState::kernel) {
            kernel_member_added();
            return -sys::epoll_ctl(this->fd(), op, fd, const_cast<epoll_event*>(event));
        }
    }
    if (op == EPOLL_CTL_ADD && in_order_.load(std::memory_order_seq_cst) && member.is_socket())
        static_cast<Socket&>(member).keep_order();
    SpinGuard guard(ctl_lock_);
    EpollItem* item = find(member, fd);
    switch (op) {
        case EPOLL_CTL_ADD: {
            if (item) return EEXIST;
            if (event == nullptr) return EFAULT;
            item = make_item(member, fd, *event, false);
            if (item == nullptr) return ENOMEM;
            add_lanes(member.lanes());
            break;
        }
        case EPOLL_CTL_MOD: {
            if (item == nullptr) return ENOENT;
            if (event == nullptr) return EFAULT;
            if ((item->events | event->events) & EPOLLEXCLUSIVE) return EINVAL;
            SpinGuard ready(ready_lock_);
            item->events = event->events | kAlwaysReported;
            item->data = event->data.u64;
            break;
        }
        case EPOLL_CTL_DEL: {
            if (item == nullptr) return ENOENT;
            member.watch.remove(*item);
            item->member_hook.unlink();
            take_down(item);
            return 0;
        }
        default:
            return EINVAL;
    }
    if (member.poll_events() & item->events) epoll_item_changed(*item, Watch::kAny);
    // A waiter that went to the kernel before it could see the member (wait() looks again after it has counted itself).
    if (op == EPOLL_CTL_ADD) call_kernel_waits();
    return 0;
}

void Epoll::forget_member(Pollable& member) {
    while (EpollItem* item = member.watch.pop_item()) {
        Epoll* epoll = item->epoll;
        {
            SpinGuard guard(epoll->ctl_lock_);
            item->member_hook.unlink();
        }
        epoll->take_down(item);
    }
}

namespace {

void add_to_kernel(const EpollItem& item) {
    epoll_event event{};
    event.events = item.events;
    event.data.u64 = item.data;
    sys::epoll_ctl(item.epoll->fd(), EPOLL_CTL_ADD, item.fd, &event);
    item.epoll->kernel_member_added();
}

}  // namespace

// A membership that is in the kernel set again, and known here. Under the Watch lock.
void Epoll::to_kernel_item(EpollItem& item) {
    add_to_kernel(item);
    {
        SpinGuard guard(item.epoll->ready_lock_);
        item.ready_hook.unlink();
        item.in_kernel = true;
    }
    item.epoll->member_count_.fetch_sub(1, std::memory_order_relaxed);
}

void Epoll::move_to_kernel(Pollable& member, bool keep) {
    if (keep) {
        member.watch.find_item([](EpollItem& item) {
            if (!item.in_kernel) {
                to_kernel_item(item);
                item.epoll->watch.notify();
            }
            return false;
        });
        return;
    }
    while (EpollItem* item = member.watch.pop_item()) {
        Epoll* epoll = item->epoll;
        if (!item->in_kernel) add_to_kernel(*item);
        {
            SpinGuard guard(epoll->ctl_lock_);
            item->member_hook.unlink();
        }
        epoll->take_down(item);
        epoll->watch.notify();  // whoever sleeps must put the kernel set under watch
    }
}

bool Epoll::prepare_from_kernel(Pollable& member) {
    const bool refused = member.watch.find_item([](EpollItem& item) {
        if (!item.in_kernel) return false;
        if (item.events & (EPOLLONESHOT | EPOLLEXCLUSIVE)) return true;
        item.epoll->member_count_.fetch_add(1, std::memory_order_seq_cst);
        item.prepared = true;
        return item.epoll->kernel_waits_.load(std::memory_order_seq_cst) != 0;
    }) != nullptr;
    if (refused) stay_in_kernel(member);
    return !refused;
}

bool Epoll::watch_in_kernel(Pollable& member) {
    const bool refused = member.watch.find_item([](EpollItem& item) {
        return item.in_kernel && (item.events & (EPOLLONESHOT | EPOLLEXCLUSIVE));
    }) != nullptr;
    if (refused) return false;
    member.watch.find_item([](EpollItem& item) {
        if (!item.in_kernel || item.prepared) return false;
        item.epoll->member_count_.fetch_add(1, std::memory_order_seq_cst);
        item.prepared = true;
        item.epoll->call_kernel_waits();
        return false;
    });
    return true;
}

void Epoll::stay_in_kernel(Pollable& member) {
    member.watch.find_item([](EpollItem& item) {
        if (item.prepared) item.epoll->member_count_.fetch_sub(1, std::memory_order_relaxed);
        item.prepared = false;
        return false;
    });
}

void Epoll::leave_kernel(Pollable& member) {
    member.watch.find_item([](EpollItem& item) {
        if (!item.prepared) return false;
        epoll_event unused{};
        sys::epoll_ctl(item.epoll->fd(), EPOLL_CTL_DEL, item.fd, &unused);
        SpinGuard guard(item.epoll->ready_lock_);
        item.in_kernel = item.prepared = false;
        return false;
    });
}

void Epoll::return_to_kernel(Pollable& member) {
    member.watch.find_item([](EpollItem& item) {
        if (!item.in_kernel) to_kernel_item(item);
        return false;
    });
}

int Epoll::list_ready(std::vector<ReadyMember>& out) {
    out.reserve(member_count_.load(std::memory_order_relaxed));
    SpinGuard guard(ready_lock_);
    for (EpollItem *item = ready_.front(), *next; item; item = next) {
        next = ready_.next(*item);
        const uint32_t events = item->member->poll_events() & item->events & ~kModifiers;
        if (events == 0)
            item->ready_hook.unlink();  // its news bring it back
        else if (item->events & (EPOLLET | EPOLLONESHOT))
            return -EINVAL;
        else if (out.size() < out.capacity() && try_reference(*item->member))
            out.emplace_back(item->member, events, item->data);
    }
    return 0;
}

namespace {

constexpr uintptr_t kPage = 4096;  // or a part of one

// First and behind the last of the pages that this thread was last seen to be able to write its events to.
thread_local uintptr_t t_room_begin = 0, t_room_end = 0;

// Does the kernel write there for this program? Adds 0 to the word of that address; wakes nobody.
bool takes_writes(uintptr_t at) {
    static uint32_t nobody = 0;
    constexpr long kAddNothing = 1L << 28;  // futex(2): FUTEX_OP_ADD of 0
    return sys::raw(SYS_futex, sys::ptr(&nobody), FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, 0,
                    long(at & ~uintptr_t{3}), kAddNothing) != -EFAULT;
}

// How many of the events the program's array has room for: a bad pointer is EFAULT, not a fault under our lock. Programs
// use one array again and again, so the kernel is seldom asked.
int room_for(const epoll_event* out, int max) {
    const auto begin = reinterpret_cast<uintptr_t>(out);
    const uintptr_t end = begin + size_t(max) * sizeof(epoll_event);
    if (begin >= t_room_begin && end <= t_room_end && begin < end) [[likely]]
        return max;
    uintptr_t at = begin & ~(kPage - 1);
    t_room_begin = at;
    while (at < end && takes_writes(std::max(at, begin))) at += kPage;
    t_room_end = at;
    return at >= end ? max : int(at > begin ? (at - begin) / sizeof(epoll_event) : 0);
}

}  // namespace

int Epoll::collect(epoll_event* out, int max) {
    max = room_for(out,
                   int(std::clamp<int64_t>(member_count_.load(std::memory_order_relaxed), 1, max)));
    SpinGuard guard(ready_lock_);
    if (ready_.empty()) return 0;
    if (max == 0) return -EFAULT;
    List<EpollItem, &EpollItem::ready_hook>
        again;  // level-triggered ones stay ready, behind the others
    int n = 0;
    while (n < max) {
        EpollItem* item = ready_.pop_front();
        if (item == nullptr) break;
        const uint32_t interest = item->events & ~kModifiers;
        if (interest == 0) continue;  // one-shot that fired
        const uint32_t events = item->member->poll_events() & interest;
        if (events == 0) continue;
        out[n].events = events;
        out[n].data.u64 = item->data;
        n++;
        if (item->events & EPOLLONESHOT)
            item->events &= kModifiers;
        else if (!(item->events & EPOLLET))
            again.push_back(*item);
    }
    ready_.splice_back(again);
    return n;
}

bool EpollTarget::ready(bool slept) {
    // Kernel members are looked at in every kKernelEvery-th turn, at once after a sleep that they ended, and whenever
    // something of ours is ready: neither side starves the other.
    count_ = ours_ = collect();
    if (count_ < 0) return true;
    const bool look =
        epoll_.has_kernel_members() &&
        (count_ != 0 || !looked_ || turn_ % kKernelEvery == 0 || (slept && kernel_.revents != 0));
    turn_++;
    if (look && count_ < max_) {
        looked_ = true;
        const int n = sys::epoll_wait(kernel_.fd, out_ + count_, max_ - count_, 0);
        if (n > 0)
            count_ += epoll_.past_call(out_ + count_, n);
        else if (n == -EFAULT && count_ == 0)
            count_ = n;
    }
    return count_ != 0;
}

Outcome EpollTarget::answer(ReadyCounts& counts) const {
    if (count_ < 0) {
        counts.failed();
        return Outcome::error(-count_);
    }
    if (count_ > 0) counts.found(uint64_t(ours_), uint64_t(count_ - ours_));
    return Outcome::value(count_);
}

namespace {

// Of a plain wait.
class AnyOrderTarget final : public EpollTarget {
    using EpollTarget::EpollTarget;
};

}  // namespace

bool Epoll::may_wait_here(int max, Outcome* kernel) {
    constexpr int kMaxEvents = INT_MAX / int(sizeof(epoll_event));  // the kernel's EP_MAX_EVENTS
    *kernel = Outcome::kernel();
    if (max <= 0 || max > kMaxEvents) return false;
    if (!has_members()) {
        // Nothing here for the library to look at, and no adoption while this thread is in the kernel.
        kernel_waits_.fetch_add(1, std::memory_order_seq_cst);
        if (member_count_.load(std::memory_order_seq_cst) == 0) {
            refs.fetch_add(1, std::memory_order_relaxed);
            *kernel = Outcome::kernel_pinned(static_cast<Object*>(this));
            return false;
        }
        unpin_in_kernel();
    }
    return true;
}

Outcome Epoll::wait(int epfd, epoll_event* out, int max, const timespec* timeout,
                    const sigset_t* mask) {
    if (Outcome kernel; !may_wait_here(max, &kernel)) return kernel;
    AnyOrderTarget target(*this, epfd, out, max);
    return wait_for(target, timeout, mask);
}

Outcome Epoll::wait_for(EpollTarget& target, const timespec* timeout, const sigset_t* mask) {
    WaitLimits limits = Context::iomux_limits();
    limits.sigmask = mask;
    if (timeout)
        limits.deadline =
            monotonic_now() + Duration{timeout->tv_sec * 1000000000 + timeout->tv_nsec};
    if (timeout && timeout->tv_sec == 0 && timeout->tv_nsec == 0) {
        for (Shard* shard : target.shards()) shard->progress();
        TwinEvents::drain();
        Screens::run();
        target.ready(true);
        return target.answer(ready_counts_);
    }
    switch (wait_until(target, governor_, limits)) {
        case WaitEnd::ready:
            return target.answer(ready_counts_);
        case WaitEnd::timeout:
            return Outcome::value(0);
        case WaitEnd::interrupted:
            break;
    }
    ready_counts_.failed();
    return Outcome::error(EINTR);
}

void Epoll::publish_counts() {
    stats::set_wait(row_, {stats::WaitKind::epoll, fd()}, wait_numbers(governor_, ready_counts_));
}

}  // namespace vma::sock
