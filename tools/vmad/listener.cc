#include "vmad/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace vmad {
namespace {

constexpr int kFirstPassed = 3;
constexpr int kWaiting = 128;

// Nobody listens behind the name any more.
bool is_left_over(const sockaddr_un& name) {
    struct stat st;
    if (lstat(name.sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) return false;
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    const bool refused = connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 &&
                         errno == ECONNREFUSED;
    close(fd);
    return refused;
}

bool bind_to(int fd, const sockaddr_un& name) {
    const auto* address = reinterpret_cast<const sockaddr*>(&name);
    if (bind(fd, address, sizeof name) == 0) return true;
    return errno == EADDRINUSE && is_left_over(name) && unlink(name.sun_path) == 0 &&
           bind(fd, address, sizeof name) == 0;
}

}  // namespace

int listen_at(const std::string& path, const std::string& group, std::string* why) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof name.sun_path) {
        *why = fmt::format("{}: too long for a socket", path);
        return -1;
    }
    std::memcpy(name.sun_path, path.c_str(), path.size());
    gid_t gid = gid_t(-1);
    if (!group.empty()) {
        const struct group* entry = getgrnam(group.c_str());
        if (entry == nullptr) {
            *why = fmt::format("there is no group {}", group);
            return -1;
        }
        gid = entry->gr_gid;
    }
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const mode_t before = umask(0177);
    const bool bound = fd >= 0 && bind_to(fd, name);
    umask(before);
    // Nobody but root can be there before it listens.
    const bool open = bound && (group.empty() || (chown(name.sun_path, uid_t(-1), gid) == 0 &&
                                                  chmod(name.sun_path, 0660) == 0));
    if (open && listen(fd, kWaiting) == 0) return fd;
    *why = fmt::format("{}: {}", path, std::strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

int passed_listener() {
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    if (pid == nullptr || count == nullptr || std::atol(pid) != getpid() || std::atoi(count) != 1)
        return -1;
    int type = 0, listens = 0;
    socklen_t len = sizeof type;
    if (getsockopt(kFirstPassed, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_SEQPACKET)
        return -1;
    len = sizeof listens;
    if (getsockopt(kFirstPassed, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) != 0 || !listens)
        return -1;
    fcntl(kFirstPassed, F_SETFD, FD_CLOEXEC);
    return kFirstPassed;
}

}  // namespace vmad
