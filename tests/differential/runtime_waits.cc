// Readiness, time, threads, signals and processes of behaviour.h.
#include <linux/sockios.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string_view>

#include "differential/runtime.h"

namespace behave {

// ---- Readiness

std::string events_text(uint32_t events) {
    std::string text;
    const auto add = [&](uint32_t bit, const char* word) {
        if (!(events & bit)) return;
        text += (text.empty() ? "" : "|") + std::string(word);
    };
    add(POLLIN, "IN");
    add(POLLPRI, "PRI");
    add(POLLOUT, "OUT");
    add(POLLERR, "ERR");
    add(POLLHUP, "HUP");
    add(POLLRDHUP, "RDHUP");
    add(POLLNVAL, "NVAL");
    add(POLLRDNORM, "RDNORM");
    add(POLLWRNORM, "WRNORM");
    return text.empty() ? "-" : text;
}

std::string polled(int fd, short events, int timeout) {
    pollfd p{fd, short(events == -1 ? POLLIN | POLLPRI | POLLOUT | POLLRDHUP : events), 0};
    const int n = poll(&p, 1, timeout);
    if (n < 0) return "-1 " + error_text();
    return n == 0 ? "-" : events_text(uint32_t(p.revents));
}

std::string ready(int fd) {
    std::string text = "poll " + polled(fd);
    const int ep = epoll_create1(0);
    epoll_event want{EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP, {.u64 = 7}}, found{};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &want) < 0) {
        text += " epoll " + error_text();
    } else {
        const int n = epoll_wait(ep, &found, 1, 0);
        text += " epoll " + (n <= 0 ? std::to_string(n) : events_text(found.events));
    }
    close(ep);
    fd_set in, out, extra;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&extra);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    FD_SET(fd, &extra);
    timeval zero{};
    const int n = select(fd + 1, &in, &out, &extra, &zero);
    text += " select " + std::to_string(n) + " ";
    text += FD_ISSET(fd, &in) ? "r" : "-";
    text += FD_ISSET(fd, &out) ? "w" : "-";
    text += FD_ISSET(fd, &extra) ? "x" : "-";
    return text;
}

bool until(int fd, short events) {
    const int64_t end = milliseconds() + kLimit;
    uint32_t found = 0;
    while (milliseconds() < end) {
        pollfd p{fd, events, 0};
        poll(&p, 1, 50);
        found = uint32_t(p.revents);
        if ((found & uint32_t(events)) == uint32_t(events)) return true;
        if (p.revents) poll(nullptr, 0, 1);  // some of them: poll() would not wait
    }
    note("waited in vain for " + events_text(uint32_t(events)) + ", there is " +
         events_text(found));
    return false;
}

int state_of(int fd) {
    tcp_info info{};
    socklen_t len = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ? -1 : info.tcpi_state;
}

bool until_state(int fd, int state) {
    const int64_t end = milliseconds() + kLimit;
    while (milliseconds() < end) {
        if (state_of(fd) == state) return true;
        poll(nullptr, 0, 1);
    }
    note("waited in vain for state " + std::to_string(state) + ", it is " +
         std::to_string(state_of(fd)));
    return false;
}

bool until_bytes(int fd, int n) {
    const int64_t end = milliseconds() + kLimit;
    int there = 0;
    while (milliseconds() < end) {
        if (ioctl(fd, FIONREAD, &there) == 0 && there >= n) return true;
        poll(nullptr, 0, 1);
    }
    note("waited in vain for " + std::to_string(n) + " bytes, there are " + std::to_string(there));
    return false;
}

bool until_acknowledged(int fd) {
    const int64_t end = milliseconds() + kLimit;
    int left = 0;
    while (milliseconds() < end) {
        if (ioctl(fd, SIOCOUTQ, &left) == 0 && left == 0) return true;
        poll(nullptr, 0, 1);
    }
    note("waited in vain for the acknowledgement of " + std::to_string(left) + " bytes");
    return false;
}

long fill(int fd) {
    long total = 0, n;
    const std::string much = pattern(1 << 20);
    nonblocking(fd);
    const int64_t end = milliseconds() + kLimit;
    while (milliseconds() < end) {
        while ((n = put(fd, much)) > 0) total += n;
        if (polled(fd, POLLOUT, 200) == "-") return total;
    }
    note("waited in vain for a full buffer");
    return total;
}

// ---- Time, threads, processes

int64_t milliseconds() {
    timespec ts{};
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return int64_t(ts.tv_sec) * 1000 + ts.tv_nsec / 1000000;
}

std::string waited(int64_t begin, int least) {
    const int64_t passed = milliseconds() - begin;
    return passed + 2 < least ? "too soon" : passed > least + 3000 ? "too late" : "in time";
}

int own_tid() { return int(syscall(SYS_gettid)); }

Thread::Thread(std::function<void()> body) : body_(std::move(body)) {
    const auto run = [](void* self) -> void* {
        Thread& thread = *static_cast<Thread*>(self);
        thread.tid_.set_value(own_tid());
        thread.body_();
        return nullptr;
    };
    if (pthread_create(&handle_, nullptr, run, this) != 0) give_up("pthread_create");
    std::future<int> tid = tid_.get_future();
    if (tid.wait_for(std::chrono::milliseconds(kLimit)) != std::future_status::ready)
        give_up("a thread does not run");
    tid_value_ = tid.get();
}

void Thread::sleeps() { until_asleep(tid_value_); }

int Thread::cancel() { return pthread_cancel(handle_); }

int Thread::kill(int number) { return pthread_kill(handle_, number); }

std::string Thread::join() {
    if (joined_.empty()) {
        timespec end{};
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_sec += 2 * kLimit / 1000;
        void* result = nullptr;
        if (pthread_clockjoin_np(handle_, &result, CLOCK_MONOTONIC, &end) != 0)
            give_up("a thread does not end");
        joined_ = result == PTHREAD_CANCELED ? "cancelled" : "returned";
    }
    return joined_;
}

namespace {
std::atomic<int> g_caught{0};
sem_t g_news;  // posted by the handler: a semaphore is what a handler may use
}  // namespace

void catch_signal(int number, int flags) {
    struct sigaction action {};
    action.sa_handler = [](int) {
        const int saved = errno;
        g_caught++;
        sem_post(&g_news);
        errno = saved;
    };
    action.sa_flags = flags;
    sigaction(number, &action, nullptr);
}

int caught() { return g_caught; }

void forget_caught() { g_caught = 0; }

bool until_caught(int n) {
    const int saved = errno;
    const int64_t end = milliseconds() + kLimit;
    const timespec until{time_t(end / 1000), long(end % 1000 * 1000000)};
    while (g_caught < n)
        if (sem_clockwait(&g_news, CLOCK_MONOTONIC, &until) != 0 && errno == ETIMEDOUT) {
            note("waited in vain for a signal");
            return false;
        }
    errno = saved;
    return true;
}

void until_asleep(int tid) {
    const int64_t end = milliseconds() + kLimit;
    int looks = 0;
    while (milliseconds() < end && looks < 3) {
        char path[64], text[512] = {};
        std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        const ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
        if (fd >= 0) close(fd);
        const std::string_view stat(text, size_t(std::max<ssize_t>(n, 0)));
        const size_t at = stat.rfind(") ");
        looks = at != std::string_view::npos && stat[at + 2] == 'S' ? looks + 1 : 0;
        poll(nullptr, 0, 2);
    }
    if (looks < 3) note("waited in vain for a thread to sleep");
}

std::string outcome(int pid) {
    int status = 0;
    const int64_t end = milliseconds() + kLimit;
    for (;;) {
        const int done = waitpid(pid, &status, WNOHANG);
        if (done < 0) return "-1 " + error_text();
        if (done > 0) break;
        if (milliseconds() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return "child does not end";
        }
        poll(nullptr, 0, 1);
    }
    if (WIFEXITED(status)) return "exit " + std::to_string(WEXITSTATUS(status));
    const char* name = sigabbrev_np(WTERMSIG(status));
    return std::string("signal ") + (name ? name : "?");
}

}  // namespace behave
