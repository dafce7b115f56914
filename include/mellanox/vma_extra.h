/* The extra API: what a program can ask of the library beyond sockets. C and C++; the layout of every structure is that of
 * VMA, field by field, so that programs compiled against VMA's header of the same name go on to work (docs/EXTRA_API.md).
 *
 * The table of functions was laid out in three ways over the years. Before including this file a program may choose one:
 *
 *     #define VMA_API_VERSION 606     free_datagrams and what came with it, five functions
 *     #define VMA_API_VERSION 902     releases 6.7 to 9.2: with cyclic buffer rings and get_mem_info
 *     #define VMA_API_VERSION 908     releases 9.3 and later; the default
 *
 * vma_get_api() says to the library which one it was compiled for. */
#ifndef MELLANOX_VMA_EXTRA_H
#define MELLANOX_VMA_EXTRA_H

#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#ifndef VMA_API_VERSION
#define VMA_API_VERSION 908
#endif
#if VMA_API_VERSION != 606 && VMA_API_VERSION != 902 && VMA_API_VERSION != 908
#error "VMA_API_VERSION is 606, 902 or 908"
#endif

/* ---- Numbers */

#define MSG_VMA_ZCOPY_FORCE 0x01000000 /* recvfrom_zcopy: fail rather than copy */
#define MSG_VMA_ZCOPY 0x00040000       /* recvfrom_zcopy, answer: the buffer holds vma_packets_t */
#define VMA_SND_FLAGS_DUMMY 0x400      /* send: take the whole way, but put nothing on the wire */

/* Options of level SOL_SOCKET. */
#define SO_VMA_GET_API 2800 /* get, of descriptor -1: pointer to the table of the newest layout */
#define SO_VMA_USER_DATA 2801
#define SO_VMA_RING_ALLOC_LOGIC 2810
#define SO_VMA_RING_USER_MEMORY 2811
#define SO_VMA_FLOW_TAG 2820
#define SO_VMA_SHUTDOWN_RX 2821
/* This library's own: as SO_VMA_GET_API for one layout, plus its VMA_API_VERSION. */
#define SO_VMA_GET_API_LAYOUT 0x564d0000

#define CMSG_VMA_IOCTL_USER_ALLOC 2900
enum { VMA_IOCTL_USER_ALLOC_FLAG_TX = 1, VMA_IOCTL_USER_ALLOC_FLAG_RX = 2 };

typedef enum {
    VMA_PACKET_DROP = 0, /* the library forgets it; TCP counts its text as read */
    VMA_PACKET_RECV = 1, /* the library queues it for the usual calls */
    VMA_PACKET_HOLD =
        2 /* the program keeps it until free_packets(), not called from the callback */
} vma_recv_callback_retval_t;

typedef enum {
    VMA_SOCKETXTREME_PACKET = (1ULL << 32),
    VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED = (1ULL << 33)
} vma_socketxtreme_events_t;

typedef enum {
    RING_LOGIC_PER_INTERFACE = 0,
    RING_LOGIC_PER_IP = 1,
    RING_LOGIC_PER_SOCKET = 10,
    RING_LOGIC_PER_USER_ID = 11,
    RING_LOGIC_PER_THREAD = 20,
    RING_LOGIC_PER_CORE = 30,
    RING_LOGIC_PER_CORE_ATTACH_THREADS = 31,
    RING_LOGIC_LAST = 32
} ring_logic_t;

typedef enum {
    VMA_RING_ALLOC_MASK_RING_PROFILE_KEY = 1,
    VMA_RING_ALLOC_MASK_RING_USER_ID = 2,
    VMA_RING_ALLOC_MASK_RING_INGRESS = 4,
    VMA_RING_ALLOC_MASK_RING_ENGRESS = 8
} vma_ring_alloc_logic_attr_comp_mask;

typedef enum { VMA_MODIFY_RING_CQ_MODERATION = 1, VMA_MODIFY_RING_CQ_ARM = 2 } vma_modify_ring_mask;

typedef enum { VMA_RING_ATTR_LAST = 0 } vma_ring_type_attr_mask;

typedef enum {
    VMA_RING_PACKET = 0,
#if VMA_API_VERSION <= 902
    VMA_RING_CYCLIC_BUFFER = 1,
    VMA_RING_EXTERNAL_MEM = 2
#else
    VMA_RING_EXTERNAL_MEM = 1
#endif
} vma_ring_type;

typedef enum {
    VMA_HW_PP_EN = 1,
#if VMA_API_VERSION <= 902
    VMA_HW_UMR_EN = 2,
    VMA_HW_MP_RQ_EN = 4,
#endif
    VMA_HW_PP_BURST_EN = 8
} mlx_hw_device_cap;

typedef enum {
    DATA_VALID_DEV = 0,
    DATA_VALID_SQ = 1,
    DATA_VALID_RQ = 2
} vma_mlx_hw_valid_data_mask;

/* Bits of vma_api_t::vma_extra_supported_mask: the functions that do something here. The others are there, too, and fail with
 * EOPNOTSUPP. */
typedef enum {
    VMA_EXTRA_API_REGISTER_RECV_CALLBACK = 1 << 0,
    VMA_EXTRA_API_RECVFROM_ZCOPY = 1 << 1,
    VMA_EXTRA_API_FREE_PACKETS = 1 << 2,
    VMA_EXTRA_API_ADD_CONF_RULE = 1 << 3,
    VMA_EXTRA_API_THREAD_OFFLOAD = 1 << 4,
    VMA_EXTRA_API_DUMP_FD_STATS = 1 << 5,
    VMA_EXTRA_API_SOCKETXTREME_POLL = 1 << 6,
    VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_PACKETS = 1 << 7,
    VMA_EXTRA_API_SOCKETXTREME_REF_VMA_BUFF = 1 << 8,
    VMA_EXTRA_API_SOCKETXTREME_FREE_VMA_BUFF = 1 << 9,
    VMA_EXTRA_API_GET_SOCKET_RINGS_NUM = 1 << 10,
    VMA_EXTRA_API_GET_SOCKET_RINGS_FDS = 1 << 11,
    VMA_EXTRA_API_GET_SOCKET_TX_RING_FD = 1 << 12,
    VMA_EXTRA_API_GET_SOCKET_NETWORK_HEADER = 1 << 13,
    VMA_EXTRA_API_GET_RING_DIRECT_DESCRIPTORS = 1 << 14,
    VMA_EXTRA_API_CYCLIC_BUFFER_READ = 1 << 15, /* layout 902 */
    VMA_EXTRA_API_ADD_RING_PROFILE = 1 << 16,
    VMA_EXTRA_API_REGISTER_MEMORY_ON_RING = 1 << 17,
    VMA_EXTRA_API_DEREGISTER_MEMORY_ON_RING = 1 << 18,
    VMA_EXTRA_API_GET_MEM_INFO = 1 << 19, /* layout 902 */
    VMA_EXTRA_API_MODIFY_RING = 1 << 20,
    VMA_EXTRA_API_IOCTL = 1 << 21 /* layout 902: get_dpcp_devices */
} vma_extra_api_mask;

/* ---- Structures */

typedef struct __attribute__((packed)) {
    uint8_t flags; /* VMA_IOCTL_USER_ALLOC_FLAG_* */
    void* (*memalloc)(size_t);
    void (*memfree)(void*);
} vma_cmsg_ioctl_user_alloc_t;

struct vma_buff_t {
    struct vma_buff_t* next;
    void* payload;
    uint16_t len;
};

struct vma_packet_desc_t {
    size_t num_bufs;
    uint16_t total_len; /* bytes of payload in all buffers */
    struct vma_buff_t* buff_lst;
    struct timespec hw_timestamp;
};

struct vma_completion_t {
    struct vma_packet_desc_t packet;
    uint64_t events;    /* vma_socketxtreme_events_t; the lower half EPOLL* */
    uint64_t user_data; /* the descriptor, or what SO_VMA_USER_DATA set */
    struct sockaddr_in src;
    int listen_fd; /* with VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED */
};

/* What recvfrom_zcopy() writes: n_packet_num records of vma_packet_t, one behind the other, each with its own number of iovecs. */
struct __attribute__((packed)) vma_packet_t {
    void* packet_id; /* for free_packets() */
    size_t sz_iov;
    struct iovec iov[];
};
struct __attribute__((packed)) vma_packets_t {
    size_t n_packet_num;
    struct vma_packet_t pkts[];
};

#if VMA_API_VERSION == 606
/* One datagram: what recvfrom_zcopy() writes in this layout. */
struct __attribute__((packed)) vma_datagram_t {
    void* datagram_id; /* for free_datagrams() */
    size_t sz_iov;
    struct iovec iov[];
};
#endif

/* What a receive callback is told besides the payload. */
struct __attribute__((packed)) vma_info_t {
    size_t struct_sz; /* of the library's structure: fields beyond it are not there */
#if VMA_API_VERSION == 606
    void* datagram_id;
#else
    void* packet_id;
#endif
    struct sockaddr_in* src;
    struct sockaddr_in* dst;
    size_t payload_sz;
    uint32_t socket_ready_queue_pkt_count;
    uint32_t socket_ready_queue_byte_count;
#if VMA_API_VERSION != 606
    struct timespec hw_timestamp;
    struct timespec sw_timestamp;
#endif
};

struct vma_rate_limit_t {
    uint32_t rate;         /* kbit/s */
    uint32_t max_burst_sz; /* bytes */
    uint16_t typical_pkt_sz;
};

struct vma_ring_alloc_logic_attr {
    uint32_t comp_mask; /* vma_ring_alloc_logic_attr_comp_mask: which fields count */
    ring_logic_t ring_alloc_logic;
    uint32_t ring_profile_key;
    uint32_t user_id;
    uint32_t ingress : 1;
    uint32_t engress : 1;
    uint32_t reserved : 30;
};

struct vma_cq_moderation_attr {
    uint32_t cq_moderation_count;
    uint32_t cq_moderation_period_usec;
};
struct vma_cq_arm_attr {};
struct vma_modify_ring_attr {
    uint32_t comp_bit_mask; /* vma_modify_ring_mask */
    int ring_fd;
    union {
        struct vma_cq_moderation_attr cq_moderation;
        struct vma_cq_arm_attr cq_arm;
    };
};

struct vma_packet_queue_ring_attr {
    uint32_t comp_mask;
};
struct vma_external_mem_attr {
    uint32_t comp_mask;
};

#if VMA_API_VERSION <= 902
typedef enum { VMA_CB_MASK_TIMESTAMP = 1 } vma_cb_mask;
typedef enum { VMA_CB_HDR_BYTE = 1, VMA_CB_EXTERNAL_MEM = 2 } vma_cb_ring_attr_mask;
typedef enum {
    RAW_PACKET = 0,
    STRIP_NETWORK_HDRS = 1,
    SEPERATE_NETWORK_HDRS = 2,
    PADDED_PACKET = 3
} vma_cb_packet_rec_mode;

struct vma_completion_cb_t {
    uint32_t comp_mask;
    void* payload_ptr;
    size_t payload_length;
    size_t packets;
    void* usr_hdr_ptr;
    size_t usr_hdr_ptr_length;
    struct timespec hw_timestamp;
};
struct vma_cyclic_buffer_ring_attr {
    uint32_t comp_mask;
    uint32_t num;
    uint16_t stride_bytes;
    uint16_t hdr_bytes;
    vma_cb_packet_rec_mode packet_receive_mode;
};
#endif

struct vma_ring_type_attr {
    uint32_t comp_mask; /* vma_ring_type_attr_mask */
    vma_ring_type ring_type;
    union {
#if VMA_API_VERSION <= 902
        struct vma_cyclic_buffer_ring_attr ring_cyclicb;
#endif
        struct vma_packet_queue_ring_attr ring_pktq;
        struct vma_external_mem_attr ring_ext;
    };
};

struct dev_data {
    uint32_t vendor_id;
    uint32_t vendor_part_id;
    uint32_t device_cap; /* mlx_hw_device_cap */
};
struct hw_cq_data {
    void* buf;
    volatile uint32_t* dbrec;
    uint32_t cq_size;
    uint32_t cqe_size;
    uint32_t cqn;
    void* uar;
    uint32_t* cons_idx;
};
struct hw_wq_data {
    void* buf;
    uint32_t wqe_cnt;
    uint32_t stride;
    volatile uint32_t* dbrec;
    struct hw_cq_data cq_data;
};
struct hw_rq_data {
    struct hw_wq_data wq_data;
    uint32_t* head;
    uint32_t* tail;
};
struct hw_sq_data {
    struct hw_wq_data wq_data;
    uint32_t sq_num;
    struct {
        void* reg;
        uint32_t size;
        uint32_t offset;
    } bf;
};
struct vma_mlx_hw_device_data {
    uint32_t valid_mask; /* vma_mlx_hw_valid_data_mask */
    struct dev_data dev_data;
    struct hw_sq_data sq_data;
    struct hw_rq_data rq_data;
};

typedef int vma_ring_profile_key;

/* Called in the program's thread, inside one of its socket calls, which it may use itself but for free_packets(). `iov` and
 * `info` are gone when it returns. */
typedef vma_recv_callback_retval_t (*vma_recv_callback_t)(int fd, size_t sz_iov, struct iovec iov[],
                                                          struct vma_info_t* info, void* context);

/* ---- The functions. Unless said otherwise 0, or -1 and errno; docs/EXTRA_API.md says what each does. */

struct __attribute__((packed)) vma_api_t {
    int (*register_recv_callback)(int s, vma_recv_callback_t callback, void* context);
    int (*recvfrom_zcopy)(int s, void* buf, size_t len, int* flags, struct sockaddr* from,
                          socklen_t* fromlen);
#if VMA_API_VERSION == 606
    int (*free_datagrams)(int s, void** datagram_ids, size_t count);
    int (*add_conf_rule)(const char* line);
    int (*thread_offload)(int offload, pthread_t tid);
#else
    int (*free_packets)(int s, struct vma_packet_t* pkts, size_t count);
    int (*add_conf_rule)(const char* line);
    int (*thread_offload)(int offload, pthread_t tid);
    int (*socketxtreme_poll)(int fd, struct vma_completion_t* completions, unsigned int n,
                             int flags);
    int (*get_socket_rings_num)(int fd);
    int (*get_socket_rings_fds)(int fd, int* ring_fds, int size);
    int (*get_socket_tx_ring_fd)(int fd, struct sockaddr* to, socklen_t tolen);
    int (*socketxtreme_free_vma_packets)(struct vma_packet_desc_t* packets, int num);
    int (*socketxtreme_ref_vma_buff)(struct vma_buff_t* buff);
    int (*socketxtreme_free_vma_buff)(struct vma_buff_t* buff);
    int (*dump_fd_stats)(int fd, int log_level);
#if VMA_API_VERSION == 902
    int (*vma_cyclic_buffer_read)(int fd, struct vma_completion_cb_t* completion, size_t min,
                                  size_t max, int flags);
#endif
    int (*vma_add_ring_profile)(struct vma_ring_type_attr* profile, vma_ring_profile_key* key);
    union { /* the second name is the one that programs use */
        int (*get_socket_network_header)(int fd, void* ptr, uint16_t* len);
        int (*get_socket_netowrk_header)(int fd, void* ptr, uint16_t* len);
    };
    int (*get_ring_direct_descriptors)(int ring_fd, struct vma_mlx_hw_device_data* data);
    int (*register_memory_on_ring)(int ring_fd, void* addr, size_t length, uint32_t* key);
    int (*deregister_memory_on_ring)(int ring_fd, void* addr, size_t length);
#if VMA_API_VERSION == 902
    int (*get_mem_info)(int fd, void** addr, size_t* length, uint32_t* lkey);
#endif
    int (*vma_modify_ring)(struct vma_modify_ring_attr* attr);
    uint64_t vma_extra_supported_mask; /* vma_extra_api_mask */
#if VMA_API_VERSION == 902
    int (*get_dpcp_devices)(uintptr_t** devices, size_t* num);
#else
    int (*ioctl)(void* cmsg_hdr, size_t cmsg_len);
#endif
#endif
};

/* The table, or NULL where the library is not loaded. A library that does not know of layouts has only the newest. */
static inline struct vma_api_t* vma_get_api(void) {
    struct vma_api_t* api = NULL;
    socklen_t len = sizeof api;
    if (getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API_LAYOUT + VMA_API_VERSION, &api, &len) == 0)
        return api;
    if (VMA_API_VERSION != 908) return NULL;
    len = sizeof api;
    return getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API, &api, &len) == 0 ? api : NULL;
}

/* ---- This library's own additions: nothing of VMA's is changed by them. */

#define SO_VMA_EXPLAIN 0x564e0000 /* get: vma_explanation_t */

enum { VMA_PATH_UNDECIDED = 0, VMA_PATH_OFFLOADED = 1, VMA_PATH_KERNEL = 2 };

/* Where a socket is served, and why. The texts are the library's and stay; "" where there is nothing to say. */
struct vma_explanation_t {
    int path;            /* VMA_PATH_* */
    int reason;          /* why not, or not altogether, by rings; 0: nothing to say, or not known */
    unsigned rings;      /* that receive for it */
    int interface_index; /* of the first of them; 0: there is none */
    const char* ring_kind;
    const char* state;          /* of an offloaded TCP socket: "ESTABLISHED", ... */
    const char* reason_name;    /* as in vma_stats */
    const char* reason_meaning; /* a line for the user */
    const char* reason_advice;  /* what he can do */
};

/* 0, or -1 and errno; ENOPROTOOPT: the library is not loaded. */
static inline int vma_explain(int fd, struct vma_explanation_t* explanation) {
    socklen_t len = sizeof *explanation;
    memset(explanation, 0, sizeof *explanation);
    return getsockopt(fd, SOL_SOCKET, SO_VMA_EXPLAIN, explanation, &len);
}

/* One message, one packet: an int of VMA_MESSAGES_*, of a TCP socket (ENOPROTOOPT: of another one, or the library is not loaded;
 * EINVAL: other bits), at any time, and inherited by what a listener accepts.
 * SEND: what one send() writes, or several with MSG_MORE up to one without, begins a segment of its own and ends with one, whatever
 *       Nagle's rule and TCP_CORK say, and when it is repeated. What is longer than a segment (TCP_INFO tells its size) is several, the
 *       last of them short. 1022 messages wait at most; then there is no room, as with a full buffer. A peer whose window stays
 *       smaller than a message gets it in pieces.
 * RECEIVE: a call reads of one packet only; the rest of it is for the next call. As the packets come: another host's network card
 *       may have joined or cut them.
 * Not while the kernel serves the connection (vma_explain() tells). */
#define SO_VMA_MESSAGES 0x564e0001
enum { VMA_MESSAGES_SEND = 1, VMA_MESSAGES_RECEIVE = 2 };

#define SO_VMA_GET_OWN_API (SO_VMA_GET_API_LAYOUT + 1) /* get, of descriptor -1: vma_own_api_t */

#define VMA_TEMPLATE_MAX 64           /* of one socket */
#define VMA_TEMPLATE_MAX_BYTES 65507u /* of each */
typedef uint64_t vma_template_t;      /* a number of its socket's; 0 is none */
struct vma_patch_t {                  /* bytes that replace those at `offset` */
    size_t offset;
    size_t len;
    const void* bytes;
};

/* What an event of ordered_epoll_wait() is about. Times are CLOCK_REALTIME. All zero: of nothing that has a place in the order. */
struct vma_ordered_event_t {
    struct timespec
        arrival; /* of the first datagram, or the first byte: when the host received it */
    struct timespec hw_arrival; /* when its device did, by the device's stamp; 0: there is none */
    size_t
        bytes; /* that may be read before what the next event is about, and before the next wait */
    unsigned datagrams; /* that these are; 0: a stream */
};

/* The table of the library's own functions. Functions of later versions stand behind these: `size` is what the loaded library has.
 * 0, or -1 and errno, unless said otherwise.
 *
 * Templates: a message that is put together once, and sent, with some bytes changed, as often as wanted, for less than send()
 * costs. Of a socket, UDP or TCP, that the library knows: EINVAL for others. The memory is the library's; the program's is read
 * inside the call only. A template stays until template_abort() or the last close of its socket, wherever that is served. One
 * thread at a time uses a template (EBUSY: another one is at it), others the other templates; ENOENT: there is none of the number.
 * A forked child has templates of its own with the same bytes.
 *
 * template_alloc   ENOBUFS: VMA_TEMPLATE_MAX are there; EMSGSIZE: more than VMA_TEMPLATE_MAX_BYTES; EINVAL: no byte; ENOMEM
 * template_update  replaces bytes, all patches or, if one does not lie in the message (EINVAL), none
 * template_fire    the same and sends it; how many bytes were sent, or -1. Like send(), whose errors it has, to the peer that the
 *                  socket has then. `flags`: MSG_DONTWAIT, MSG_NOSIGNAL
 *
 * ordered_epoll_wait   epoll_wait(), its result and errors, and the events in the order in which what there is to read arrived at the
 *                  host, with one order[] for each. Who reads as much of each descriptor as it says, one after the other, and then waits
 *                  again, reads everything of all sockets in that order. EINVAL also: a member that is ready has EPOLLET or
 *                  EPOLLONESHOT. Several threads may wait on one set; the order is that of one reader */
struct vma_own_api_t {
    size_t size;
    int (*template_alloc)(int fd, const struct iovec* iov, int count, vma_template_t* number);
    int (*template_update)(int fd, vma_template_t number, const struct vma_patch_t* patches,
                           int count);
    ssize_t (*template_fire)(int fd, vma_template_t number, const struct vma_patch_t* patches,
                             int count, int flags);
    int (*template_abort)(int fd, vma_template_t number);
    int (*ordered_epoll_wait)(int epfd, struct epoll_event* events,
                              struct vma_ordered_event_t* order, int max, int timeout);
};

/* NULL: the library is not loaded, or is one without such a table. It is the same for the whole process. */
static inline const struct vma_own_api_t* vma_get_own_api(void) {
    struct vma_own_api_t* api = NULL;
    socklen_t len = sizeof api;
    return getsockopt(-1, SOL_SOCKET, SO_VMA_GET_OWN_API, &api, &len) == 0 ? api : NULL;
}

#endif
