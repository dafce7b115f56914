// The tables of function pointers, one for each layout and one of this library's own, and getsockopt()'s answer with them.
#include <errno.h>

#include <cstring>

#include "engine/runtime.h"
#include "extra/api.h"
#include "extra/boundary.h"
#include "extra/functions.h"
#include "extra/layouts.h"

namespace vma::extra {
namespace {

// A function that is in the table because programs may call without a look at the mask.
template <class... Arguments>
int not_there(Arguments...) {
    errno = EOPNOTSUPP;
    return -1;
}

// Those that do something.
constexpr uint64_t kSupported =
    VMA_EXTRA_API_REGISTER_RECV_CALLBACK | VMA_EXTRA_API_RECVFROM_ZCOPY |
    VMA_EXTRA_API_FREE_PACKETS | VMA_EXTRA_API_ADD_CONF_RULE | VMA_EXTRA_API_THREAD_OFFLOAD |
    VMA_EXTRA_API_DUMP_FD_STATS | VMA_EXTRA_API_GET_SOCKET_RINGS_NUM |
    VMA_EXTRA_API_GET_SOCKET_RINGS_FDS | VMA_EXTRA_API_GET_SOCKET_TX_RING_FD |
    VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER | VMA_EXTRA_API_SOCKETXTREME_POLL |
    VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS | VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF |
    VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF | VMA_EXTRA_API_ADD_RING_PROFILE |
    VMA_EXTRA_API_GET_RING_DIRECT_DESCRIPTORS | VMA_EXTRA_API_REGISTER_MEMORY_ON_RING |
    VMA_EXTRA_API_DEREGISTER_MEMORY_ON_RING | VMA_EXTRA_API_MODIFY_RING;
constexpr uint64_t kSupported908 = kSupported | VMA_EXTRA_API_IOCTL;
constexpr uint64_t kSupported902 =
    kSupported | VMA_EXTRA_API_CYCLIC_BUFFER_READ | VMA_EXTRA_API_GET_MEM_INFO;

// Given out as pointers to what may be changed, as VMA's are: some programs put functions of their own in.
vma_api_t g_newest = {
    .register_recv_callback = register_recv_callback,
    .recvfrom_zcopy = recvfrom_zcopy,
    .free_packets = free_packets,
    .add_conf_rule = add_conf_rule,
    .thread_offload = thread_offload,
    .socketxtreme_poll = socketxtreme_poll,
    .get_socket_rings_num = get_socket_rings_num,
    .get_socket_rings_fds = get_socket_rings_fds,
    .get_socket_tx_ring_fd = get_socket_tx_ring_fd,
    .socketxtreme_free_vma_packets = socketxtreme_free_vma_packets,
    .socketxtreme_ref_vma_buff = socketxtreme_ref_vma_buff,
    .socketxtreme_free_vma_buff = socketxtreme_free_vma_buff,
    .dump_fd_stats = dump_fd_stats,
    .vma_add_ring_profile = add_ring_profile,
    .get_socket_network_header = get_socket_network_header,
    .get_ring_direct_descriptors = get_ring_direct_descriptors,
    .register_memory_on_ring = register_memory_on_ring,
    .deregister_memory_on_ring = deregister_memory_on_ring,
    .vma_modify_ring = modify_ring,
    .vma_extra_supported_mask = kSupported908,
    .ioctl = ioctl,
};

Layout902 g_902 = {
    .register_recv_callback = register_recv_callback,
    .recvfrom_zcopy = recvfrom_zcopy,
    .free_packets = free_packets,
    .add_conf_rule = add_conf_rule,
    .thread_offload = thread_offload,
    .socketxtreme_poll = socketxtreme_poll,
    .get_socket_rings_num = get_socket_rings_num,
    .get_socket_rings_fds = get_socket_rings_fds,
    .get_socket_tx_ring_fd = get_socket_tx_ring_fd,
    .socketxtreme_free_vma_packets = socketxtreme_free_vma_packets,
    .socketxtreme_ref_vma_buff = socketxtreme_ref_vma_buff,
    .socketxtreme_free_vma_buff = socketxtreme_free_vma_buff,
    .dump_fd_stats = dump_fd_stats,
    .cyclic_buffer_read = cyclic_buffer_read,
    .add_ring_profile = add_ring_profile_902,
    .get_socket_network_header = get_socket_network_header,
    .get_ring_direct_descriptors = get_ring_direct_descriptors,
    .register_memory_on_ring = register_memory_on_ring,
    .deregister_memory_on_ring = deregister_memory_on_ring,
    .get_mem_info = get_mem_info,
    .modify_ring = modify_ring,
    .supported_mask = kSupported902,
    .get_dpcp_devices = not_there,
};

Layout606 g_606 = {
    .register_recv_callback = register_recv_callback_606,
    .recvfrom_zcopy = recvfrom_zcopy_606,
    .free_datagrams = free_datagrams,
    .add_conf_rule = add_conf_rule,
    .thread_offload = thread_offload,
};

vma_own_api_t g_own = {
    .size = sizeof(vma_own_api_t),
    .template_alloc = template_alloc,
    .template_update = template_update,
    .template_fire = template_fire,
    .template_abort = template_abort,
    .ordered_epoll_wait = ordered_epoll_wait,
};

void* table_of(int layout) {
    switch (layout) {
        case SO_VMA_GET_OWN_API - SO_VMA_GET_API_LAYOUT:
            return &g_own;
        case 606:
            return &g_606;
        case 902:
            return &g_902;
        case 908:
            return &g_newest;
        default:
            return nullptr;
    }
}

}  // namespace

sock::Outcome give_table(int name, void* value, socklen_t* len) {
    if (value == nullptr || len == nullptr) return sock::Outcome::error(EFAULT);
    if (*len < sizeof(void*)) return sock::Outcome::error(EINVAL);
    // A process whose sockets are all the kernel's, for a system call filter, has no extra API.
    if (!started()) return sock::Outcome::kernel();
    void* const table =
        table_of(name == kGetApi ? Runtime::options().extra_api_layout : name - kGetApiLayout);
    if (table == nullptr) return sock::Outcome::error(ENOPROTOOPT);
    std::memcpy(value, &table, sizeof table);
    *len = sizeof table;
    return sock::Outcome::value(0);
}

}  // namespace vma::extra
