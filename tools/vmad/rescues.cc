#include "vmad/rescues.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/sys.h"
#include "broker/channel.h"
#include "engine/bereaved.h"
#include "vmad/client.h"

namespace vmad {
namespace {

constexpr unsigned kSeconds = 30;  // then it is broken, and ends

bool wait_for_go(void* context) {
    const int pipe = *static_cast<int*>(context);
    char c = 'R';
    if (vma::sys::write(pipe, &c, 1) != 1) return false;
    return vma::broker::wait_readable(pipe, int(kSeconds) * 1000) &&
           vma::sys::read(pipe, &c, 1) == 1 && c == 'G';
}

// What the child writes: 'R' when it has restored what it can, then the connections that it could not.
struct LostConnections {
    static constexpr size_t kMost = 128;
    char what = 'L';
    vma::FlowKey keys[kMost];
};
static_assert(std::is_trivially_copyable_v<LostConnections>);

// In the child. Whoever would go on asking the peers has ended: then they are told once.
void name_lost(int pipe, std::span<const vma::FlowKey> lost) {
    LostConnections message;
    while (!lost.empty()) {
        const size_t n = std::min(lost.size(), LostConnections::kMost);
        std::copy_n(lost.begin(), n, message.keys);
        const size_t bytes = offsetof(LostConnections, keys) + n * sizeof lost[0];
        if (vma::sys::sendto(pipe, &message, bytes, MSG_NOSIGNAL) != ssize_t(bytes)) {
            vma::Bereaved peers;
            peers.add(lost, vma::monotonic_now());
            return;
        }
        lost = lost.subspan(n);
    }
}

void tell(pid_t of, const RescueCounters& c) {
    if (c.delivered + c.shared + c.reset + c.lost + c.nonsense == 0) return;
    syslog(
        LOG_NOTICE,
        "process %d has ended: of its connections %u go on to their end in the kernel, %u with a "
        "child of it, %u were reset, %u lost; %u records were damaged",
        int(of), c.delivered, c.shared, c.reset, c.lost, c.nonsense);
}

void bury(const Estate& estate) {
    for (const WatchedArena& a : estate.arenas)
        if (vma::Hook* hook = hook_on(a.facts.ifindex)) hook->bury(a.facts.slot, a.facts.token);
}

}  // namespace

Rescues::Rescues() : poll_(vma::sys::epoll_create1(EPOLL_CLOEXEC)) {}

void Rescues::forget() {
    poll_ = Fd();
    children_.clear();
}

void Rescues::start(Estate estate, pid_t of, const std::function<void()>& in_child) {
    int pair[2];
    if (vma::sys::raw(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                      vma::sys::ptr(pair)) < 0) {
        bury(estate);
        return;
    }
    Child child;
    child.pipe = Fd(pair[0]);
    child.estate = std::move(estate);
    child.of = of;
    child.pid = fork();
    if (child.pid == 0) {
        alarm(kSeconds);
        may_wait();
        child.pipe = Fd();
        forget();
        in_child();
        std::vector<vma::FlowKey> lost;
        const RescueCounters c = rescue(child.estate, wait_for_go, &pair[1], lost);
        tell(of, c);
        name_lost(pair[1], lost);
        _exit(0);
    }
    vma::sys::close(pair[1]);
    epoll_event news{};
    news.events = EPOLLIN;
    news.data.u32 = next_;
    if (child.pid < 0 ||
        vma::sys::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, child.pipe.get(), &news) != 0) {
        bury(child.estate);
        return;
    }
    children_.emplace(next_++, std::move(child));
}

// False: it has ended.
bool Rescues::hears(Child& child) {
    LostConnections message;
    const ssize_t n = vma::sys::read(child.pipe.get(), &message, sizeof message);
    if (n == 1 && message.what == 'R') {
        // Every connection is in the kernel: from here on it gets their frames.
        for (const WatchedArena& a : child.estate.arenas)
            if (vma::Hook* hook = hook_on(a.facts.ifindex))
                hook->retire(a.facts.slot, a.facts.token);
        const char go = 'G';
        vma::sys::write(child.pipe.get(), &go, 1);
        return true;
    }
    if (n > ssize_t(offsetof(LostConnections, keys)) && message.what == 'L') {
        const size_t count = (size_t(n) - offsetof(LostConnections, keys)) / sizeof message.keys[0];
        lost_.insert(lost_.end(), message.keys, message.keys + count);
        return true;
    }
    return n == -EINTR || n == -EAGAIN;
}

void Rescues::serve() {
    epoll_event events[16];
    const int n = vma::sys::epoll_wait(poll_.get(), events, 16, 0);
    for (int i = 0; i < n; i++) {
        const auto it = children_.find(events[i].data.u32);
        if (it == children_.end() || hears(it->second)) continue;
        const Child& child = it->second;
        int status = 0;
        waitpid(child.pid, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            syslog(LOG_WARNING, "process %d has ended: rescuing its connections failed (status %x)",
                   int(child.of), unsigned(status));
        bury(child.estate);
        children_.erase(it);
    }
}

}  // namespace vmad
