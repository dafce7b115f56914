#include "softhca/hca/notifier.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace softhca {
namespace {

// A real device opens nothing when it wakes somebody, so the program's next descriptor is not to be another one for that.
int out_of_the_way(int fd) {
    rlimit limit{};
    if (fd < 0 || getrlimit(RLIMIT_NOFILE, &limit) < 0) return fd;
    const rlim_t from = std::min<rlim_t>(limit.rlim_cur, 4096) / 4 * 3;
    const int high = fcntl(fd, F_DUPFD_CLOEXEC, int(from));
    if (high < 0) return fd;
    ::close(fd);
    return high;
}

// write() to a pipe whose reader may be gone, without the signal that is the program's to send. False: this descriptor leads
// to nobody any more; the program may also have closed it with all others.
bool write_without_signal(int fd, const void* value, uint32_t bytes) {
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    const int error = ::write(fd, value, bytes) < 0 ? errno : 0;
    const timespec at_once{};
    if (error == EPIPE && !sigismember(&pending, SIGPIPE)) sigtimedwait(&pipe, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error == EPIPE) ::close(fd);
    return error != EPIPE && error != EBADF;
}

}  // namespace

Notifier::~Notifier() {
    for (auto& [path, fd] : writers_) ::close(fd);
}

int Notifier::make(const std::string& path) {
    ::unlink(path.c_str());  // of a station that died
    if (mkfifo(path.c_str(), 0666) < 0) return -1;
    chmod(path.c_str(), 0666);
    return ::open(path.c_str(),
                  O_RDWR | O_CLOEXEC);  // also a writer: reading blocks, it never ends
}

void Notifier::drop(const std::string& path, int fd) {
    ::unlink(path.c_str());
    ::close(fd);
}

void Notifier::notify(const std::string& path, const void* value, uint32_t bytes) {
    const int before = errno;
    std::lock_guard locked(mutex_);
    const auto known = writers_.find(path);
    if (known == writers_.end() || !write_without_signal(known->second, value, bytes)) {
        writers_.erase(path);
        const int fd = out_of_the_way(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
        if (fd >= 0 && write_without_signal(fd, value, bytes)) writers_.emplace(path, fd);
    }
    errno = before;
}

std::string Notifier::channel_path(const Wire& wire, uint32_t station, uint32_t generation,
                                   uint32_t channel) {
    return wire.path() + "/channel-" + std::to_string(station) + "-" + std::to_string(generation) +
           "-" + std::to_string(channel);
}

std::string Notifier::async_path(const Wire& wire, uint32_t station, uint32_t generation) {
    return wire.path() + "/async-" + std::to_string(station) + "-" + std::to_string(generation);
}

}  // namespace softhca
