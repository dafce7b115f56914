#include "sock/poll_select.h"

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/deferred_signal.h"
#include "sock/context.h"
#include "sock/epoll.h"
#include "sock/fd_table.h"
#include "sock/fork.h"
#include "sock/screen.h"
#include "sock/tcp_socket.h"
#include "sock/udp_socket.h"

namespace vma::sock {
namespace {

// Scratch memory for one call: the stack for small sets, mmap for large ones. Unwinding frees it.
template <class T, unsigned Few>
class Scratch {
  public:
    explicit Scratch(size_t n) : n_(n) {
        if (n <= Few) return;
        void* memory = sys::mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        data_ = sys::failed(memory) ? nullptr : static_cast<T*>(memory);
    }
    ~Scratch() {
        if (data_ && data_ != few_) sys::munmap(data_, n_ * sizeof(T));
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    T* data() { return data_; }
    T* data() const { return data_; }
    bool ok() const { return data_ != nullptr; }

  private:
    size_t n_;
    T few_[Few];
    T* data_ = few_;
};

// One set of descriptors under poll: ours are looked at here, the others are handed to the kernel's poll.
class PollSet final : public WaitTarget {
  public:
    PollSet(pollfd* fds, nfds_t n, Context::KernelTurns turns)
        : turns_(turns),
          fds_(fds),
          n_(n),
          members_(n),
          held_(n),
          sleepers_(n),
          kernel_(n),
          kernel_index_(n) {}
    ~PollSet() {
        for (nfds_t i = 0; i < built_; i++) {
            Object* const object = held_.data()[i].object;
            if (object == nullptr) continue;
            if (held_.data()[i].pinned) static_cast<TcpSocket&>(*object).unpin_in_kernel();
            release_object(object);
        }
    }

    // False: out of memory. ours() tells whether there is anything of ours.
    bool build() {
        if (!members_.ok() || !held_.ok() || !sleepers_.ok() || !kernel_.ok() ||
            !kernel_index_.ok())
            return false;
        for (nfds_t i = 0; i < n_; i++) {
            Object* object =
                fds_[i].fd >= 0 && maybe_ours(fds_[i].fd) ? FdTable::acquire(fds_[i].fd) : nullptr;
            if (object) inherit(*object);
            if (object && object->kind == ObjectKind::tcp)
                static_cast<TcpSocket&>(*object).activate_listener(fds_[i].fd);
            // One that may be adopted is asked of the kernel, and stays there for as long as this call lasts.
            // One on its way into the shm ring is asked of both.
            const bool both = object && crossing(object);
            const bool pinned = object && !both && object->kind == ObjectKind::tcp &&
                                static_cast<TcpSocket&>(*object).may_be_adopted() &&
                                static_cast<TcpSocket&>(*object).pin_in_kernel();
            held_.data()[i] = {object, pinned};
            built_ = i + 1;
            if (object) ours_++;
            if (object && !both && (pinned || !served_here(*object, fds_[i].fd))) {
                if (!pinned) {
                    release_object(object);
                    held_.data()[i].object = nullptr;
                    ours_--;
                }
                object = nullptr;
            }
            members_.data()[i] = static_cast<Pollable*>(object);
            // An epoll set has a kernel side too: both are asked.
            if (fds_[i].fd >= 0 &&
                (object == nullptr || both || object->kind == ObjectKind::epoll)) {
                kernel_.data()[kernel_count_] = {fds_[i].fd, fds_[i].events, 0};
                kernel_index_.data()[kernel_count_++] = i;
            }
        }
        return true;
    }
    bool ours() const { return ours_ != 0; }

    bool ready(bool slept) override {
        slept_ |= slept;
        // A member that was handed back meanwhile is the kernel's to watch. Not while hooks of ours are in its list: until
        // then (may_sleep) it counts for nothing.
        if (!watched_) follow_moved();
        count = of_kernel = 0;
        for (nfds_t i = 0; i < n_; i++) {
            fds_[i].revents = 0;
            if (Pollable* member = members_.data()[i]; member && !(watched_ && moved(member))) {
                const uint32_t wanted = uint32_t(uint16_t(fds_[i].events)) | POLLERR | POLLHUP;
                uint32_t events = member->poll_events() & wanted;
                if (events && slept_) events = of_number(i, *member, events, wanted);
                fds_[i].revents = short(events);
                if (events) count++;
            }
        }
        // The kernel's side: after a sleep its answer is there; else it is asked in its turns.
        if (kernel_count_ && !slept && is_kernels_turn()) {
            const timespec zero{};
            if (sys::ppoll(kernel_.data(), kernel_count_, &zero) < 0)
                for (size_t k = 0; k < kernel_count_; k++) kernel_.data()[k].revents = 0;
            slept = true;
        }
        if (slept)
            for (size_t k = 0; k < kernel_count_; k++)
                if (kernel_.data()[k].revents && !left_kernel(kernel_index_.data()[k])) {
                    pollfd& out = fds_[kernel_index_.data()[k]];
                    if (out.revents == 0) {
                        count++;
                        of_kernel++;
                    }
                    out.revents = short(out.revents | kernel_.data()[k].revents);
                }
        return count != 0;
    }
    bool may_sleep() override {
        for (nfds_t i = 0; i < n_; i++)
            if (moved(members_.data()[i])) return false;
        return true;
    }
    void watch(Sleeper& sleeper) override {
        watched_ = true;
        // A Sleeper hooks into one list: each member gets one of its own that forwards to the same thread.
        for (nfds_t i = 0; i < n_; i++)
            if (Pollable* member = members_.data()[i]) {
                auto* s = new (&sleepers_.data()[i]) Sleeper;
                s->thread = sleeper.thread;
                member->watch.add(*s);
            }
    }
    void unwatch(Sleeper& sleeper) override {
        watched_ = false;
        for (nfds_t i = 0; i < n_; i++)
            if (Pollable* member = members_.data()[i]) {
                Sleeper& s = sleepers_.data()[i];
                member->watch.remove(s);
                if (s.notified.load(std::memory_order_acquire))
                    sleeper.notified.store(true, std::memory_order_release);
            }
    }
    std::span<Shard* const> shards() override {
        uint64_t lanes = 0;
        if (Runtime::lanes().several())
            for (nfds_t i = 0; i < n_; i++)
                if (const Pollable* member = members_.data()[i]) lanes |= member->lanes();
        return shards_.of(lanes);
    }
    std::span<pollfd> kernel_fds() override { return {kernel_.data(), kernel_count_}; }

    int count = 0;
    int of_kernel = 0;  // of `count`, descriptors that only the kernel reports

  private:
    struct Held {
        Object* object;
        bool pinned;
    };
    bool is_kernels_turn() { return count != 0 ? turns_.complete : turn_++ % turns_.every == 0; }
    static bool moved(Pollable* member) {
        return member && member->kind == ObjectKind::tcp && !crossing(member) &&
               static_cast<TcpSocket*>(member)->state() == SocketState::kernel;
    }
    static bool crossing(Object* object) {
        return object->kind == ObjectKind::tcp && static_cast<TcpSocket*>(object)->crossing();
    }
    // Asked of both sides: what the kernel says counts no more once it is served here.
    bool left_kernel(nfds_t i) const {
        Pollable* const member = members_.data()[i];
        return member && member->kind == ObjectKind::tcp &&
               (static_cast<TcpSocket*>(member)->settling() ||
                static_cast<TcpSocket*>(member)->state() != SocketState::kernel);
    }
    void follow_moved() {
        for (nfds_t i = 0; i < n_; i++) {
            if (!moved(members_.data()[i])) continue;
            auto& socket = static_cast<TcpSocket&>(*members_.data()[i]);
            if (socket.may_be_adopted() && !(held_.data()[i].pinned = socket.pin_in_kernel()))
                continue;  // and it is back again
            members_.data()[i] = nullptr;
            turn_ = 0;
            if (std::find(kernel_index_.data(), kernel_index_.data() + kernel_count_, i) !=
                kernel_index_.data() + kernel_count_)
                continue;  // it was asked of both
            kernel_.data()[kernel_count_] = {fds_[i].fd, fds_[i].events, 0};
            kernel_index_.data()[kernel_count_++] = i;
        }
    }
    // After a sleep Linux looks at what has the number by then: nothing any more, or another file.
    uint32_t of_number(nfds_t i, Pollable& member, uint32_t events, uint32_t wanted) {
        Object* const now = FdTable::acquire(fds_[i].fd);
        if (now == static_cast<Object*>(&member)) {
            release_object(now);
            return events;
        }
        if (now && served_here(*now, fds_[i].fd))
            events = static_cast<Pollable*>(now)->poll_events() & wanted;
        else {
            pollfd look{fds_[i].fd, fds_[i].events, 0};
            const timespec zero{};
            events = sys::ppoll(&look, 1, &zero) > 0 ? uint32_t(uint16_t(look.revents)) : 0;
        }
        if (now) release_object(now);
        return events;
    }
    static bool served_here(Object& object, int fd) {
        if (object.kind == ObjectKind::epoll) return static_cast<Epoll&>(object).has_members();
        if (object.kind == ObjectKind::tcp)
            return static_cast<TcpSocket&>(object).state() == SocketState::offloaded;
        auto& socket = static_cast<UdpSocket&>(object);
        if (socket.state() == SocketState::undecided) socket.settle(fd, false);
        return socket.state() != SocketState::kernel;
    }

    const Context::KernelTurns turns_;
    pollfd* fds_;
    const nfds_t n_;
    nfds_t built_ = 0;
    size_t ours_ = 0, kernel_count_ = 0;
    unsigned turn_ = 0;
    bool watched_ = false, slept_ = false;
    LaneShards shards_;
    Scratch<Pollable*, 32> members_;  // looked at here
    Scratch<Held, 32> held_;
    Scratch<Sleeper, 32> sleepers_;
    Scratch<pollfd, 32> kernel_;
    Scratch<nfds_t, 32> kernel_index_;
};

// The waiting place of all poll calls of the process, and that of all select calls.
struct Place {
    SpinGovernor governor;
    ReadyCounts counts;
    std::atomic<uint32_t> calls{0};
    stats::RowHandle row;
};
Place g_poll, g_select;

void publish(Place& place, stats::WaitKind kind) {
    stats::set_wait(place.row, {kind, -1}, wait_numbers(place.governor, place.counts));
}

// Returns like poll: count, or -EINTR. `set` is built and has members of ours.
int wait_in(Place& place, PollSet& set, const timespec* timeout, const sigset_t* mask) {
    for (Shard* shard : set.shards()) shard->progress();
    TwinEvents::drain();
    Screens::run();
    if (timeout && timeout->tv_sec == 0 && timeout->tv_nsec == 0) {
        if (set.ready(false)) return set.count;
        // Nothing there: a signal that the mask lets in is told, even without waiting.
        const timespec zero{};
        const bool signal = mask && sys::blocking_ppoll(nullptr, 0, &zero, mask) == -EINTR;
        return signal ? -EINTR : 0;
    }
    WaitLimits limits = Context::iomux_limits();
    limits.sigmask = mask;
    if (timeout)
        limits.deadline =
            monotonic_now() + Duration{timeout->tv_sec * 1000000000 + timeout->tv_nsec};
    switch (wait_until(set, place.governor, limits)) {
        case WaitEnd::ready:
            return set.count;
        case WaitEnd::timeout:
            return 0;
        case WaitEnd::interrupted:
            break;
    }
    return -EINTR;
}

// The same, counted.
int wait_on(Place& place, PollSet& set, const timespec* timeout, const sigset_t* mask) {
    const int result = wait_in(place, set, timeout, mask);
    if (result > 0)
        place.counts.found(uint64_t(result - set.of_kernel), uint64_t(set.of_kernel));
    else if (result < 0)
        place.counts.failed();
    return result;
}

}  // namespace

Outcome poll_mixed(pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* mask) {
    // What the kernel refuses (EFAULT, EINVAL) is left to it; no limit of descriptors is above NR_OPEN's most.
    if (fds == nullptr || n > (1u << 30)) return Outcome::kernel();
    bool any = false;
    for (nfds_t i = 0; i < n && !any; i++) any = fds[i].fd >= 0 && maybe_ours(fds[i].fd);
    if (!any) return Outcome::kernel();
    PollSet set(fds, n, Context::kernel_turns(g_poll.calls));
    if (!set.build()) return Outcome::error(ENOMEM);
    if (!set.ours()) return Outcome::kernel();
    const int result = wait_on(g_poll, set, timeout, mask);
    return result < 0 ? Outcome::error(-result) : Outcome::value(result);
}

Outcome select_mixed(int nfds, fd_set* read, fd_set* write, fd_set* except, timespec* timeout,
                     const sigset_t* mask) {
    if (nfds < 0) return Outcome::kernel();
    // The program's sets may be longer than fd_set (select(2) on Linux takes what nfds says): plain bit arrays.
    using Word = unsigned long;
    constexpr int kBits = 8 * sizeof(Word);
    auto word = [](fd_set* set, int fd) -> Word& {
        return reinterpret_cast<Word*>(set)[fd / kBits];
    };
    auto has = [&](fd_set* set, int fd) { return set && (word(set, fd) >> (fd % kBits) & 1); };
    size_t count = 0;
    bool any = false;
    for (int fd = 0; fd < nfds; fd++)
        if (has(read, fd) || has(write, fd) || has(except, fd)) {
            count++;
            any |= maybe_ours(fd);
        }
    if (!any) return Outcome::kernel();
    // The events of select's three sets in terms of poll (select(2), "Correspondence between select() and poll()").
    constexpr short kIn = POLLRDNORM | POLLRDBAND | POLLIN,
                    kOut = POLLWRBAND | POLLWRNORM | POLLOUT;
    Scratch<pollfd, 64> fds(count);
    if (!fds.ok()) return Outcome::error(ENOMEM);
    size_t n = 0;
    for (int fd = 0; fd < nfds; fd++) {
        const int events = (has(read, fd) ? kIn : 0) | (has(write, fd) ? kOut : 0) |
                           (has(except, fd) ? POLLPRI : 0);
        if (events) fds.data()[n++] = {fd, short(events), 0};
    }
    PollSet set(fds.data(), n, Context::kernel_turns(g_select.calls));
    if (!set.build()) return Outcome::error(ENOMEM);
    if (!set.ours()) return Outcome::kernel();
    const Instant start = monotonic_now();
    const int result = wait_on(g_select, set, timeout, mask);
    if (timeout) {
        const Duration left =
            Duration{timeout->tv_sec * 1000000000 + timeout->tv_nsec} - (monotonic_now() - start);
        *timeout = left.ns > 0 ? timespec{left.ns / 1000000000, left.ns % 1000000000} : timespec{};
    }
    if (result < 0) return Outcome::error(-result);
    for (size_t i = 0; i < n; i++)
        if (fds.data()[i].revents & POLLNVAL) return Outcome::error(EBADF);
    const int words = (nfds + kBits - 1) / kBits;
    for (fd_set* s : {read, write, except})
        if (s) std::memset(s, 0, size_t(words) * sizeof(Word));
    long bits = 0;
    auto set_bit = [&](fd_set* s, int fd, bool on) {
        if (!s || !on) return;
        word(s, fd) |= Word(1) << (fd % kBits);
        bits++;
    };
    for (size_t i = 0; i < n; i++) {
        const pollfd& p = fds.data()[i];
        set_bit(read, p.fd, (p.events & kIn) && (p.revents & (kIn | POLLHUP | POLLERR)));
        set_bit(write, p.fd, (p.events & kOut) && (p.revents & (kOut | POLLERR)));
        set_bit(except, p.fd, (p.events & POLLPRI) && (p.revents & POLLPRI));
    }
    return Outcome::value(bits);
}

void poll_publish_counts() {
    publish(g_poll, stats::WaitKind::poll);
    publish(g_select, stats::WaitKind::select);
}

}  // namespace vma::sock
