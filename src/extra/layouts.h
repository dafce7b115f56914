// The two older layouts of the table (vma_extra.h with VMA_API_VERSION 606 and 902), which differ in what stands where. Types
// that this version of the header does not declare are left open: nothing here looks into them.
#pragma once

#include "mellanox/vma_extra.h"

namespace vma::extra {

using Newest = vma_api_t;

// vma_info_t of layout 606 ends where the times begin.
inline constexpr size_t kInfo606 = offsetof(vma_info_t, hw_timestamp);
static_assert(kInfo606 == 48);

struct Layout606 {
    decltype(Newest::register_recv_callback) register_recv_callback;
    decltype(Newest::recvfrom_zcopy) recvfrom_zcopy;
    int (*free_datagrams)(int s, void** ids, size_t count);
    decltype(Newest::add_conf_rule) add_conf_rule;
    decltype(Newest::thread_offload) thread_offload;
};

struct Layout902 {
    decltype(Newest::register_recv_callback) register_recv_callback;
    decltype(Newest::recvfrom_zcopy) recvfrom_zcopy;
    decltype(Newest::free_packets) free_packets;
    decltype(Newest::add_conf_rule) add_conf_rule;
    decltype(Newest::thread_offload) thread_offload;
    decltype(Newest::socketxtreme_poll) socketxtreme_poll;
    decltype(Newest::get_socket_rings_num) get_socket_rings_num;
    decltype(Newest::get_socket_rings_fds) get_socket_rings_fds;
    decltype(Newest::get_socket_tx_ring_fd) get_socket_tx_ring_fd;
    decltype(Newest::socketxtreme_free_vma_packets) socketxtreme_free_vma_packets;
    decltype(Newest::socketxtreme_ref_vma_buff) socketxtreme_ref_vma_buff;
    decltype(Newest::socketxtreme_free_vma_buff) socketxtreme_free_vma_buff;
    decltype(Newest::dump_fd_stats) dump_fd_stats;
    int (*cyclic_buffer_read)(int fd, void* completion, size_t min, size_t max, int flags);
    int (*add_ring_profile)(void* profile, int* key);
    decltype(Newest::get_socket_network_header) get_socket_network_header;
    decltype(Newest::get_ring_direct_descriptors) get_ring_direct_descriptors;
    decltype(Newest::register_memory_on_ring) register_memory_on_ring;
    decltype(Newest::deregister_memory_on_ring) deregister_memory_on_ring;
    int (*get_mem_info)(int fd, void** addr, size_t* length, uint32_t* lkey);
    decltype(Newest::vma_modify_ring) modify_ring;
    uint64_t supported_mask;
    int (*get_dpcp_devices)(uintptr_t** devices, size_t* num);
};

// Structures of that layout which the newest header does not have (vma_ring_type_attr, vma_completion_cb_t).
struct RingProfile902 {
    uint32_t comp_mask, ring_type;
    uint32_t cyclic_mask, elements;
    uint16_t stride_bytes, user_header_bytes;
    uint32_t mode;
    bool operator==(const RingProfile902&) const = default;
};
enum CyclicMask902 : uint32_t { kHasUserHeader = 1, kOwnMemory = 2 };
enum CyclicMode902 : uint32_t { kRawPacket, kStripHeaders, kSeparateHeaders, kPaddedPacket };
struct CyclicCompletion902 {
    uint32_t comp_mask;
    void* payload;
    size_t payload_bytes, packets;
    void* user_header;
    size_t user_header_bytes;
    timespec hw_timestamp;
};
inline constexpr uint32_t kWantsTimestamp = 1;  // of its comp_mask

}  // namespace vma::extra
