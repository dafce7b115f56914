// Hooks: making, naming and tuning sockets.
#include "extra/api.h"
#include "intercept/hooks.h"

namespace vma::hook {
namespace {

// socketpair and the like never make one of ours; AF_INET6 is told too, so that its reason is counted.
bool is_candidate(int domain, int type) {
    const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    return (domain == AF_INET || domain == AF_INET6) && (kind == SOCK_STREAM || kind == SOCK_DGRAM);
}

}  // namespace

int socket(int domain, int type, int protocol) {
    const int fd = libc.socket(domain, type, protocol);
    return is_candidate(domain, type) ? sock::created(fd, domain, type, protocol) : fresh(fd);
}

int socketpair(int domain, int type, int protocol, int* pair) {
    const int result = libc.socketpair(domain, type, protocol, pair);
    if (result == 0) {
        fresh(pair[0]);
        fresh(pair[1]);
    }
    return result;
}

int bind(int fd, const sockaddr* addr, socklen_t len) {
    if (!ours(fd)) return libc.bind(fd, addr, len);
    return answer<int>([=] { return sock::bind(fd, addr, len); },
                       [=] { return libc.bind(fd, addr, len); });
}

int connect(int fd, const sockaddr* addr, socklen_t len) {
    if (!ours(fd)) return libc.connect(fd, addr, len);
    return cancellable<int>([=] { return sock::connect(fd, addr, len); },
                            [=] { return libc.connect(fd, addr, len); });
}
VMA_ALIAS(__connect, connect);

int listen(int fd, int backlog) {
    if (!ours(fd)) return libc.listen(fd, backlog);
    return answer<int>([=] { return sock::listen(fd, backlog); },
                       [=] { return libc.listen(fd, backlog); });
}

int accept(int fd, sockaddr* addr, socklen_t* len) {
    const auto in_kernel = [=] {
        return accept_in_kernel(fd, addr, len, 0, [=](sockaddr* to, socklen_t* size) {
            return libc.accept(fd, to, size);
        });
    };
    if (!ours(fd)) return in_kernel();
    return cancellable<int>([=] { return sock::accept4(fd, addr, len, 0); }, in_kernel);
}

int accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
    const auto in_kernel = [=] {
        return accept_in_kernel(fd, addr, len, flags, [=](sockaddr* to, socklen_t* size) {
            return libc.accept4(fd, to, size, flags);
        });
    };
    if (!ours(fd)) return in_kernel();
    return cancellable<int>([=] { return sock::accept4(fd, addr, len, flags); }, in_kernel);
}

int getsockname(int fd, sockaddr* addr, socklen_t* len) {
    if (!ours(fd)) return libc.getsockname(fd, addr, len);
    return answer<int>([=] { return sock::getsockname(fd, addr, len); },
                       [=] { return libc.getsockname(fd, addr, len); });
}

int getpeername(int fd, sockaddr* addr, socklen_t* len) {
    if (!ours(fd)) return libc.getpeername(fd, addr, len);
    return answer<int>([=] { return sock::getpeername(fd, addr, len); },
                       [=] { return libc.getpeername(fd, addr, len); });
}

int setsockopt(int fd, int level, int option, const void* value, socklen_t len) {
    if (!ours(fd)) return libc.setsockopt(fd, level, option, value, len);
    return answer<int>([=] { return extra::setsockopt(fd, level, option, value, len); },
                       [=] { return libc.setsockopt(fd, level, option, value, len); });
}

int getsockopt(int fd, int level, int option, void* value, socklen_t* len) {
    if (extra::asks_for_table(fd, level, option) && !inside_library())
        return answer<int>([=] { return extra::give_table(option, value, len); },
                           [=] { return libc.getsockopt(fd, level, option, value, len); });
    if (extra::asks_to_explain(level, option) && !inside_library())
        return answer<int>([=] { return extra::explain(fd, value, len); },
                           [=] { return libc.getsockopt(fd, level, option, value, len); });
    if (!ours(fd)) return libc.getsockopt(fd, level, option, value, len);
    return answer<int>([=] { return extra::getsockopt(fd, level, option, value, len); },
                       [=] { return libc.getsockopt(fd, level, option, value, len); });
}

int shutdown(int fd, int how) {
    if (!ours(fd)) return libc.shutdown(fd, how);
    return answer<int>([=] { return sock::shutdown(fd, how); },
                       [=] { return libc.shutdown(fd, how); });
}

int sockatmark(int fd) {
    if (!ours(fd)) return libc.sockatmark(fd);
    return answer<int>([=] { return sock::sockatmark(fd); }, [=] { return libc.sockatmark(fd); });
}

// The twin is a socket of the right type.
int isfdtype(int fd, int type) { return libc.isfdtype(fd, type); }

// libresolv closes its sockets by itself here; a number that comes back is noticed by fresh().
void __res_iclose(void* state, bool free_addr) { libc.__res_iclose(state, free_addr); }

}  // namespace vma::hook
