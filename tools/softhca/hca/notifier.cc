#include "softhca/hca/notifier.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace softhca {

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
    auto at = writers_.find(path);
    if (at == writers_.end()) {
        const int fd = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0) at = writers_.emplace(path, fd).first;
    }
    if (at != writers_.end() && ::write(at->second, value, bytes) < 0 && errno == EPIPE) {
        ::close(at->second);
        writers_.erase(at);
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
