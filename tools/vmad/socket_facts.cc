#include "vmad/socket_facts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include <cstdio>
#include <string>
#include <utility>

#include "base/sys.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#endif

namespace vmad {
namespace {

constexpr int kTcpClose = 7, kTcpListen = 10;  // enum of linux/net/tcp_states.h

int int_option(int fd, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    return vma::sys::getsockopt(fd, SOL_SOCKET, name, &value, &len) == 0 ? value : -1;
}

// Of a process's time namespace; `pid`: as in /proc.
vma::Duration clock_offset(const std::string& pid) {
    FILE* const file = fopen(("/proc/" + pid + "/timens_offsets").c_str(), "re");
    if (file == nullptr) return {};
    long long seconds = 0, nanoseconds = 0;
    const bool found = fscanf(file, "monotonic %lld %lld", &seconds, &nanoseconds) == 2;
    fclose(file);
    return found ? vma::Duration::seconds(seconds) + vma::Duration{nanoseconds} : vma::Duration{};
}

}  // namespace

vma::broker::SocketFacts socket_facts(int fd) {
    vma::broker::SocketFacts f;
    if (int_option(fd, SO_DOMAIN) != AF_INET) return f;
    const int protocol = int_option(fd, SO_PROTOCOL);
    f.tcp = protocol == IPPROTO_TCP && int_option(fd, SO_TYPE) == SOCK_STREAM;
    f.udp = protocol == IPPROTO_UDP && int_option(fd, SO_TYPE) == SOCK_DGRAM;
    f.netns_cookie = netns_cookie_of(fd);
    sockaddr_storage name{};
    socklen_t len = sizeof name;
    if (vma::sys::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &len) == 0)
        vma::Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&name), len, f.local);
    if (f.tcp) {
        tcp_info info{};
        len = sizeof info;
        // A socket whose state cannot be read is taken for one that must not be touched.
        if (vma::sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0) info.tcpi_state = 1;
        f.listening = info.tcpi_state == kTcpListen;
        f.connected = info.tcpi_state != kTcpClose;
    }
    sockaddr_storage peer{};
    len = sizeof peer;
    const bool has_peer = vma::sys::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &len) == 0;
    if (!f.tcp) f.connected = has_peer;
    if (has_peer) vma::Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&peer), len, f.remote);
    return f;
}

bool peer_of(int socket, Peer& out) {
    ucred who{};
    socklen_t len = sizeof who;
    if (vma::sys::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.pid <= 0)
        return false;
    out.pid = who.pid;
    out.user = who.uid;
    std::vector<gid_t> groups(64);
    len = socklen_t(groups.size() * sizeof(gid_t));
    int result = vma::sys::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &len);
    if (result == -ERANGE) {  // the length is that which it takes
        groups.resize(len / sizeof(gid_t));
        result = vma::sys::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &len);
    }
    groups.resize(result == 0 ? len / sizeof(gid_t) : 0);
    groups.insert(groups.begin(), who.gid);
    out.groups = std::move(groups);
    return true;
}

uint64_t netns_cookie_of(int socket) {
    uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    return vma::sys::getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) == 0 ? cookie
                                                                                         : 0;
}

uint64_t own_netns_cookie() {
    const int fd = vma::sys::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 0;
    const uint64_t cookie = netns_cookie_of(fd);
    vma::sys::close(fd);
    return cookie;
}

vma::Duration clock_ahead(pid_t pid) {
    return clock_offset(std::to_string(pid)) - clock_offset("self");
}

bool is_memory_file(int fd) { return vma::sys::fcntl(fd, F_GET_SEALS) >= 0; }

}  // namespace vmad
