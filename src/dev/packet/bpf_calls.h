// bpf(2) as the packet ring needs it, over raw system calls. Each returns a value >= 0 or -errno. Descriptors are CLOEXEC.
// TCX constants are written out: the build machine's headers may be older than Linux 6.6.
#pragma once

#include <cstdint>

namespace vma::bpf {

inline constexpr uint32_t kTcxIngress = 46;
inline constexpr uint32_t kTcxEgress = 47;

struct Attached {
    uint32_t program = 0;  // ids
    uint32_t link = 0;
};

int create_map(uint32_t type, const char* name, uint32_t key_size, uint32_t value_size,
               uint32_t entries, uint32_t flags);
int update(int map, const void* key, const void* value, uint64_t flags);
// Several elements in one call: for tables of maps the kernel waits for one grace period instead of one per element.
int update_batch(int map, const void* keys, const void* values, uint32_t count);
int lookup(int map, const void* key, void* value);
int erase(int map, const void* key);
int take(int map, const void* key, void* value);     // lookup and erase in one
int next_key(int map, const void* key, void* next);  // key null: the first; -ENOENT at the end

// A TCX link: the program runs on the interface until the last descriptor of the link is closed. The interface is looked
// up in the calling thread's network namespace, here and in attached().
int attach_tcx(int program, int ifindex, uint32_t attach_type);
// What is attached there, at most `room` entries; how many there are, -EINVAL without TCX (Linux < 6.6).
int attached(int ifindex, uint32_t attach_type, Attached* out, unsigned room);

// The same with an XDP program; `flags`: XDP_FLAGS_SKB_MODE or XDP_FLAGS_DRV_MODE. -EBUSY: the interface has one.
int attach_xdp(int program, int ifindex, uint32_t flags);
// The next XDP link, after the one with number *after, of an interface with that number, in whichever namespace: a descriptor, its
// number in *after, its program's in *program; -ENOENT at the end. CAP_SYS_ADMIN.
int next_xdp_link(int ifindex, uint32_t* after, uint32_t* program);

// By id: CAP_SYS_ADMIN.
int link_by_id(uint32_t id);
int program_by_id(uint32_t id);
int map_by_id(uint32_t id);
// 1 alive, 0 gone, -errno unknown (no CAP_SYS_ADMIN).
int map_exists(uint32_t id);

struct ProgramInfo {
    uint32_t id = 0;
    char name[16] = {};
    uint32_t maps[8] = {};
    uint32_t map_count = 0;
};
int program_info(int program, ProgramInfo& out);
struct MapInfo {
    uint32_t id = 0, type = 0, key_size = 0, value_size = 0, entries = 0;
    char name[16] = {};
};
int map_info(int map, MapInfo& out);

}  // namespace vma::bpf
