#include "extra/functions.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "engine/runtime.h"
#include "extra/boundary.h"
#include "extra/ring_options.h"
#include "sock/cyclic.h"
#include "sock/stats_requests.h"
#include "sock/thread_offload.h"
#include "sock/using.h"

namespace vma::extra {

// Unlike the others it says 1 for what it cannot read.
int add_conf_rule(const char* line) {
    return ask_library([=] {
        if (line == nullptr) return -EINVAL;
        if (!started()) return -EOPNOTSUPP;
        return Runtime::add_rule(line).ok() ? 0 : 1;
    });
}

int thread_offload(int offload, pthread_t thread) {
    return ask_library([=] {
        if (!started()) return -EOPNOTSUPP;
        Runtime::heavy_start();
        return -sock::set_thread_offload(thread, offload != 0);
    });
}

int dump_fd_stats(int fd, int log_level) {
    return ask_library([=] {
        if (!Runtime::started()) return -EOPNOTSUPP;
        const bool known = log_level >= int(LogLevel::none) && log_level <= int(LogLevel::all);
        (void)sock::dump_descriptor(fd, known ? LogLevel(log_level) : LogLevel::info);
        return 0;
    });
}

namespace {

// SocketXtreme polls one ring of a socket, the first. A socket with a cyclic buffer is its own ring.
int rings_of(int fd, std::span<int> out) {
    const sock::Using object{fd};
    sock::Socket* const socket = object.socket();
    const int count = socket ? int(socket->ring_fds(out)) : 0;
    if (count != 0 && object.udp() && sock::cyclic_of(*object.udp()) != nullptr) {
        if (!out.empty()) out[0] = fd;
        return 1;
    }
    return sock::Xtreme::on() ? std::min(count, 1) : count;
}

}  // namespace

int get_socket_rings_num(int fd) {
    return ask_library([=] { return rings_of(fd, {}); });
}

int get_socket_rings_fds(int fd, int* ring_fds, int size) {
    return ask_library([=] {
        if (ring_fds == nullptr || size <= 0) return -EINVAL;
        return std::min(rings_of(fd, {ring_fds, size_t(size)}), size);
    });
}

int get_socket_tx_ring_fd(int fd, sockaddr* to, socklen_t tolen) {
    return ask_library([=] {
        Endpoint destination;
        if (to == nullptr || !Endpoint::from_sockaddr(to, tolen, destination)) return -EINVAL;
        const sock::Using object{fd};
        sock::Socket* const socket = object.socket();
        if (socket == nullptr) return -EINVAL;
        const int ring = socket->send_ring_fd(&destination);
        if (ring < 0) return -ENODATA;
        return sends_by_program(*socket) ? program_queues_of(ring) : ring;
    });
}

int get_socket_network_header(int fd, void* ptr, uint16_t* len) {
    return ask_library([=] {
        if (len == nullptr) return -EINVAL;
        const sock::Using object{fd};
        sock::Socket* const socket = object.socket();
        if (socket == nullptr) return -EINVAL;
        uint8_t header[sock::Socket::kMostHeaders];
        const uint32_t size = socket->network_header(header);
        if (size == 0) return -ENOTCONN;
        if (ptr != nullptr && *len < size) return -ENOBUFS;
        if (ptr != nullptr) std::memcpy(ptr, header, size);
        *len = uint16_t(size);
        return 0;
    });
}

}  // namespace vma::extra
