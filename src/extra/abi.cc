// The layout of every structure of vma_extra.h, as programs that were compiled against VMA's header have it (x86-64, LP64).
#include "extra/api.h"
#include "extra/layouts.h"

namespace vma::extra {

#define SIZE(type, size, align) static_assert(sizeof(type) == size && alignof(type) == align)
#define AT(type, field, offset, size) \
    static_assert(offsetof(type, field) == offset && sizeof(type::field) == size)

SIZE(vma_cmsg_ioctl_user_alloc_t, 17, 1);
AT(vma_cmsg_ioctl_user_alloc_t, flags, 0, 1);
AT(vma_cmsg_ioctl_user_alloc_t, memalloc, 1, 8);
AT(vma_cmsg_ioctl_user_alloc_t, memfree, 9, 8);

SIZE(vma_buff_t, 24, 8);
AT(vma_buff_t, next, 0, 8);
AT(vma_buff_t, payload, 8, 8);
AT(vma_buff_t, len, 16, 2);

SIZE(vma_packet_desc_t, 40, 8);
AT(vma_packet_desc_t, num_bufs, 0, 8);
AT(vma_packet_desc_t, total_len, 8, 2);
AT(vma_packet_desc_t, buff_lst, 16, 8);
AT(vma_packet_desc_t, hw_timestamp, 24, 16);

SIZE(vma_completion_t, 80, 8);
AT(vma_completion_t, packet, 0, 40);
AT(vma_completion_t, events, 40, 8);
AT(vma_completion_t, user_data, 48, 8);
AT(vma_completion_t, src, 56, 16);
AT(vma_completion_t, listen_fd, 72, 4);

SIZE(vma_packet_t, 16, 1);
AT(vma_packet_t, packet_id, 0, 8);
AT(vma_packet_t, sz_iov, 8, 8);
static_assert(offsetof(vma_packet_t, iov) == 16);
SIZE(vma_packets_t, 8, 1);
AT(vma_packets_t, n_packet_num, 0, 8);
static_assert(offsetof(vma_packets_t, pkts) == 8);

SIZE(vma_info_t, 80, 1);
AT(vma_info_t, struct_sz, 0, 8);
AT(vma_info_t, packet_id, 8, 8);
AT(vma_info_t, src, 16, 8);
AT(vma_info_t, dst, 24, 8);
AT(vma_info_t, payload_sz, 32, 8);
AT(vma_info_t, socket_ready_queue_pkt_count, 40, 4);
AT(vma_info_t, socket_ready_queue_byte_count, 44, 4);
AT(vma_info_t, hw_timestamp, 48, 16);
AT(vma_info_t, sw_timestamp, 64, 16);

SIZE(vma_rate_limit_t, 12, 4);
AT(vma_rate_limit_t, rate, 0, 4);
AT(vma_rate_limit_t, max_burst_sz, 4, 4);
AT(vma_rate_limit_t, typical_pkt_sz, 8, 2);

SIZE(vma_ring_alloc_logic_attr, 20, 4);
AT(vma_ring_alloc_logic_attr, comp_mask, 0, 4);
AT(vma_ring_alloc_logic_attr, ring_alloc_logic, 4, 4);
AT(vma_ring_alloc_logic_attr, ring_profile_key, 8, 4);
AT(vma_ring_alloc_logic_attr, user_id, 12, 4);

SIZE(vma_cq_moderation_attr, 8, 4);
AT(vma_cq_moderation_attr, cq_moderation_count, 0, 4);
AT(vma_cq_moderation_attr, cq_moderation_period_usec, 4, 4);
SIZE(vma_modify_ring_attr, 16, 4);
AT(vma_modify_ring_attr, comp_bit_mask, 0, 4);
AT(vma_modify_ring_attr, ring_fd, 4, 4);
AT(vma_modify_ring_attr, cq_moderation, 8, 8);
static_assert(offsetof(vma_modify_ring_attr, cq_arm) == 8);

SIZE(vma_packet_queue_ring_attr, 4, 4);
AT(vma_packet_queue_ring_attr, comp_mask, 0, 4);
SIZE(vma_external_mem_attr, 4, 4);
AT(vma_external_mem_attr, comp_mask, 0, 4);
SIZE(vma_ring_type_attr, 12, 4);
AT(vma_ring_type_attr, comp_mask, 0, 4);
AT(vma_ring_type_attr, ring_type, 4, 4);
AT(vma_ring_type_attr, ring_pktq, 8, 4);
AT(vma_ring_type_attr, ring_ext, 8, 4);

SIZE(::dev_data, 12, 4);
AT(::dev_data, vendor_id, 0, 4);
AT(::dev_data, vendor_part_id, 4, 4);
AT(::dev_data, device_cap, 8, 4);
SIZE(hw_cq_data, 48, 8);
AT(hw_cq_data, buf, 0, 8);
AT(hw_cq_data, dbrec, 8, 8);
AT(hw_cq_data, cq_size, 16, 4);
AT(hw_cq_data, cqe_size, 20, 4);
AT(hw_cq_data, cqn, 24, 4);
AT(hw_cq_data, uar, 32, 8);
AT(hw_cq_data, cons_idx, 40, 8);
SIZE(hw_wq_data, 72, 8);
AT(hw_wq_data, buf, 0, 8);
AT(hw_wq_data, wqe_cnt, 8, 4);
AT(hw_wq_data, stride, 12, 4);
AT(hw_wq_data, dbrec, 16, 8);
AT(hw_wq_data, cq_data, 24, 48);
SIZE(hw_rq_data, 88, 8);
AT(hw_rq_data, wq_data, 0, 72);
AT(hw_rq_data, head, 72, 8);
AT(hw_rq_data, tail, 80, 8);
SIZE(hw_sq_data, 96, 8);
AT(hw_sq_data, wq_data, 0, 72);
AT(hw_sq_data, sq_num, 72, 4);
AT(hw_sq_data, bf.reg, 80, 8);
AT(hw_sq_data, bf.size, 88, 4);
AT(hw_sq_data, bf.offset, 92, 4);
SIZE(vma_mlx_hw_device_data, 200, 8);
AT(vma_mlx_hw_device_data, valid_mask, 0, 4);
AT(vma_mlx_hw_device_data, dev_data, 4, 12);
AT(vma_mlx_hw_device_data, sq_data, 16, 96);
AT(vma_mlx_hw_device_data, rq_data, 112, 88);

// The table: every slot is 8 bytes, so the offsets say all.
#define SLOT(table, slot, offset) AT(table, slot, offset, 8)
SIZE(vma_api_t, 168, 1);
SLOT(vma_api_t, register_recv_callback, 0);
SLOT(vma_api_t, recvfrom_zcopy, 8);
SLOT(vma_api_t, free_packets, 16);
SLOT(vma_api_t, add_conf_rule, 24);
SLOT(vma_api_t, thread_offload, 32);
SLOT(vma_api_t, socketxtreme_poll, 40);
SLOT(vma_api_t, get_socket_rings_num, 48);
SLOT(vma_api_t, get_socket_rings_fds, 56);
SLOT(vma_api_t, get_socket_tx_ring_fd, 64);
SLOT(vma_api_t, socketxtreme_free_vma_packets, 72);
SLOT(vma_api_t, socketxtreme_ref_vma_buff, 80);
SLOT(vma_api_t, socketxtreme_free_vma_buff, 88);
SLOT(vma_api_t, dump_fd_stats, 96);
SLOT(vma_api_t, vma_add_ring_profile, 104);
SLOT(vma_api_t, get_socket_network_header, 112);
SLOT(vma_api_t, get_socket_netowrk_header, 112);
SLOT(vma_api_t, get_ring_direct_descriptors, 120);
SLOT(vma_api_t, register_memory_on_ring, 128);
SLOT(vma_api_t, deregister_memory_on_ring, 136);
SLOT(vma_api_t, vma_modify_ring, 144);
SLOT(vma_api_t, vma_extra_supported_mask, 152);
SLOT(vma_api_t, ioctl, 160);

SIZE(Layout606, 40, 8);
SLOT(Layout606, free_datagrams, 16);
SLOT(Layout606, thread_offload, 32);
SIZE(Layout902, 184, 8);
SLOT(Layout902, dump_fd_stats, 96);
SLOT(Layout902, cyclic_buffer_read, 104);
SLOT(Layout902, add_ring_profile, 112);
SLOT(Layout902, get_socket_network_header, 120);
SLOT(Layout902, get_mem_info, 152);
SLOT(Layout902, modify_ring, 160);
SLOT(Layout902, supported_mask, 168);
SLOT(Layout902, get_dpcp_devices, 176);

SIZE(RingProfile902, 24, 4);
AT(RingProfile902, ring_type, 4, 4);
AT(RingProfile902, cyclic_mask, 8, 4);
AT(RingProfile902, elements, 12, 4);
AT(RingProfile902, stride_bytes, 16, 2);
AT(RingProfile902, user_header_bytes, 18, 2);
AT(RingProfile902, mode, 20, 4);
SIZE(CyclicCompletion902, 64, 8);
AT(CyclicCompletion902, payload, 8, 8);
AT(CyclicCompletion902, payload_bytes, 16, 8);
AT(CyclicCompletion902, packets, 24, 8);
AT(CyclicCompletion902, user_header, 32, 8);
AT(CyclicCompletion902, user_header_bytes, 40, 8);
AT(CyclicCompletion902, hw_timestamp, 48, 16);

static_assert(kGetApi == SO_VMA_GET_API && kGetApiLayout == SO_VMA_GET_API_LAYOUT);

}  // namespace vma::extra
