#include "vmad/workers.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <utility>

#include "base/descriptor_message.h"
#include "base/sys.h"
#include "broker/spawn.h"
#include "vmad/socket_facts.h"

namespace vmad {
namespace {

// In the child: enters the namespace and becomes another vmad.
[[noreturn]] void become_worker(int namespace_fd, int control, const std::string& policy) {
    if (setns(namespace_fd, CLONE_NEWNET) == 0 &&
        vma::sys::raw(SYS_dup3, control, vma::broker::kBrokerSocket, 0) >= 0) {
        vma::sys::raw(SYS_close_range, vma::broker::kBrokerSocket + 1, ~0u, 0);
        vma::broker::keep_capabilities();
        execl("/proc/self/exe", "vmad", "--namespace", policy.c_str(), nullptr);
    }
    _exit(127);
}

bool send_byte(int control, std::span<const int> fds) {
    char byte = 0;
    const iovec part{&byte, 1};
    return vma::send_with_fds(control, {&part, 1}, fds).ok();
}

}  // namespace

Workers::Workers() : poll_(vma::sys::epoll_create1(EPOLL_CLOEXEC)) {}

void Workers::forget() {
    poll_ = Fd();
    workers_.clear();
}

Workers::Worker* Workers::find(const Namespace& where) {
    for (auto& [id, w] : workers_)
        if (!w.leaving && w.where.device == where.device && w.where.inode == where.inode) return &w;
    return nullptr;
}

Workers::Worker* Workers::start(const Namespace& where, int namespace_fd, uid_t user,
                                const std::string& policy, std::string* why) {
    size_t same = 0;
    for (const auto& [id, w] : workers_) same += w.user == user;
    if (workers_.size() >= kMost || (user != 0 && same >= kMostOfUser)) {
        *why = "too many network namespaces are served";
        return nullptr;
    }
    *why = "its network namespace cannot be served: nothing is left for another process";
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return nullptr;
    Worker worker;
    worker.control = Fd(pair[0]);
    const Fd theirs(pair[1]);
    worker.where = where;
    worker.user = user;
    epoll_event news{};
    news.events = EPOLLIN;
    news.data.u32 = next_;
    if (vma::sys::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, pair[0], &news) != 0) return nullptr;
    worker.pid = fork();
    if (worker.pid == 0) become_worker(namespace_fd, theirs.get(), policy);
    if (worker.pid < 0) return nullptr;
    return &workers_.emplace(next_++, std::move(worker)).first->second;
}

bool Workers::pass(int door, uid_t user, const Namespace& where, int namespace_fd,
                   const std::string& policy, std::string* why) {
    Worker* worker = find(where);
    if (worker == nullptr) worker = start(where, namespace_fd, user, policy, why);
    if (worker == nullptr) return false;
    *why = "too many ask at once";
    if (!send_byte(worker->control.get(), {&door, 1})) return false;
    worker->passed++;
    return true;
}

void Workers::reload() {
    for (auto& [id, w] : workers_)
        if (!w.leaving && !send_byte(w.control.get(), {}))
            syslog(LOG_WARNING, "vmad %d of another network namespace goes on with its old policy",
                   int(w.pid));
}

// False: it has ended.
bool Workers::hears(uint32_t id, Worker& w, Registry& registry) {
    WorkerSays said;
    vma::Fds fds(close_received);
    const auto n = vma::receive_with_fds(
        w.control.get(), {reinterpret_cast<uint8_t*>(&said), sizeof said}, fds, MSG_CMSG_CLOEXEC);
    if (!n && (n.error() == EAGAIN || n.error() == EINTR)) return true;
    if (!n || *n != sizeof said) return false;
    const uint64_t member = uint64_t(id) << 32 | said.client;
    switch (said.kind) {
        case WorkerSays::idle:
            // A door that it had not got when it said so keeps it.
            if (said.doors == w.passed && shutdown(w.control.get(), SHUT_WR) == 0) w.leaving = true;
            break;
        case WorkerSays::joins: {
            said.share[sizeof said.share - 1] = 0;
            Fd link = Fd::of_client(fds.take(0));
            const uint64_t cookie = netns_cookie_of(link.get());
            (void)registry.join(member, std::move(link), cookie, said.user, said.share);
            break;
        }
        case WorkerSays::publishes:
            (void)registry.publish(member, {vma::IpAddr::v4(said.address), uint16_t(said.port)});
            break;
    }
    return true;
}

void Workers::serve(Registry& registry) {
    epoll_event events[16];
    const int n = vma::sys::epoll_wait(poll_.get(), events, 16, 0);
    for (int i = 0; i < n; i++) {
        const auto it = workers_.find(events[i].data.u32);
        if (it == workers_.end() || hears(it->first, it->second, registry)) continue;
        const pid_t pid = it->second.pid;
        workers_.erase(it);
        int status = 0;
        waitpid(pid, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            syslog(LOG_WARNING, "vmad %d of another network namespace has ended (status %x)",
                   int(pid), unsigned(status));
    }
}

}  // namespace vmad
