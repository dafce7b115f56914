// vma_explain(): where a socket is served and why, in the program's terms.
#include <errno.h>
#include <mellanox/vma_extra.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/sys.h"
#include "extra/api.h"
#include "extra/boundary.h"
#include "sock/process.h"
#include "sock/using.h"
#include "stack/tcp/tcp.h"

namespace vma::extra {
namespace {

using sock::Outcome;

static_assert(VMA_PATH_UNDECIDED == int(stats::Path::undecided) &&
              VMA_PATH_OFFLOADED == int(stats::Path::offloaded) &&
              VMA_PATH_KERNEL == int(stats::Path::kernel));
static_assert(kExplain == SO_VMA_EXPLAIN);

vma_explanation_t of_socket(sock::Socket& socket) {
    const stats::SocketIdentity id = socket.show().id;
    vma_explanation_t e{};
    e.path = int(id.path);
    e.reason = int(id.reason);
    e.rings = unsigned(std::popcount(id.rings));
    const auto shards = Runtime::shards();
    if (const auto first = size_t(std::countr_zero(id.rings)); first < shards.size()) {
        e.ring_kind = shards[first]->ring_kind();
        e.interface_index = shards[first]->ifindex();
    }
    if (socket.kind == sock::ObjectKind::tcp && id.path == stats::Path::offloaded)
        e.state = tcp::state_name(tcp::State(id.tcp_state));
    return e;
}

// A socket that the library does not know: it was the kernel's from birth, or came from elsewhere.
vma_explanation_t of_kernel(int fd, int domain) {
    vma_explanation_t e{};
    int type = 0, protocol = 0;
    socklen_t len = sizeof type;
    (void)sys::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len);
    (void)sys::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len);
    e.path = VMA_PATH_KERNEL;
    e.reason = int(sock::born_kernel(domain, type, protocol));
    return e;
}

}  // namespace

Outcome explain(int fd, void* value, socklen_t* len) {
    if (value == nullptr || len == nullptr) return Outcome::error(EFAULT);
    int domain = 0;
    socklen_t size = sizeof domain;
    if (const int error = sys::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size); error < 0)
        return Outcome::error(-error);
    if (!started()) return Outcome::kernel();
    const sock::Using object{fd};
    sock::Socket* const socket = object.socket();
    vma_explanation_t e = socket ? of_socket(*socket) : of_kernel(fd, domain);
    if (const auto reason = Reason(e.reason); reason != Reason::none) {
        e.reason_name = reason_name(reason);
        e.reason_meaning = reason_meaning(reason);
        e.reason_advice = reason_advice(reason);
    }
    for (const char** text :
         {&e.state, &e.ring_kind, &e.reason_name, &e.reason_meaning, &e.reason_advice})
        if (*text == nullptr) *text = "";
    // A program that was compiled against an older header has fewer fields.
    *len = std::min(*len, socklen_t(sizeof e));
    std::memcpy(value, &e, *len);
    return Outcome::value(0);
}

}  // namespace vma::extra
