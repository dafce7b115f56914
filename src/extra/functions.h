// The functions of the extra API, as programs call them: in their threads, with errno for failures.
#pragma once

#include "mellanox/vma_extra.h"

namespace vma::extra {

int register_recv_callback(int s, vma_recv_callback_t callback, void* context);
int recvfrom_zcopy(int s, void* buf, size_t len, int* flags, sockaddr* from, socklen_t* fromlen);
int free_packets(int s, vma_packet_t* pkts, size_t count);
// Of layout 606: one vma_datagram_t, and an array of ids.
int recvfrom_zcopy_606(int s, void* buf, size_t len, int* flags, sockaddr* from,
                       socklen_t* fromlen);
int register_recv_callback_606(int s, vma_recv_callback_t callback, void* context);
int free_datagrams(int s, void** ids, size_t count);
int socketxtreme_poll(int fd, vma_completion_t* completions, unsigned n, int flags);
int socketxtreme_free_vma_packets(vma_packet_desc_t* packets, int num);
int socketxtreme_ref_vma_buff(vma_buff_t* buff);
int socketxtreme_free_vma_buff(vma_buff_t* buff);
int add_conf_rule(const char* line);
int thread_offload(int offload, pthread_t thread);
int add_ring_profile(vma_ring_type_attr* profile, int* key);
int add_ring_profile_902(void* profile, int* key);  // another list of types
int dump_fd_stats(int fd, int log_level);
int get_socket_rings_num(int fd);
int get_socket_rings_fds(int fd, int* ring_fds, int size);
int get_socket_tx_ring_fd(int fd, sockaddr* to, socklen_t tolen);
int get_socket_network_header(int fd, void* ptr, uint16_t* len);
int get_ring_direct_descriptors(int ring_fd, vma_mlx_hw_device_data* data);
int register_memory_on_ring(int ring_fd, void* addr, size_t length, uint32_t* key);
int deregister_memory_on_ring(int ring_fd, void* addr, size_t length);
int modify_ring(vma_modify_ring_attr* attr);
int ioctl(void* cmsg_hdr, size_t cmsg_len);
int cyclic_buffer_read(int fd, void* completion, size_t min, size_t max, int flags);
int get_mem_info(int fd, void** addr, size_t* length, uint32_t* lkey);
// This library's own.
int template_alloc(int fd, const iovec* iov, int count, vma_template_t* out);
int template_update(int fd, vma_template_t number, const vma_patch_t* patches, int count);
ssize_t template_fire(int fd, vma_template_t number, const vma_patch_t* patches, int count,
                      int flags);
int template_abort(int fd, vma_template_t number);
int ordered_epoll_wait(int epfd, epoll_event* events, vma_ordered_event_t* order, int max,
                       int timeout);

}  // namespace vma::extra
