#include "dev/packet/bpf_calls.h"

#include <linux/bpf.h>

#include <cerrno>
#include <cstring>

#include "base/sys.h"

// Called by the C side (skeleton_calls.h).
extern "C" {
long vma_bpf(int command, void* attributes, unsigned size);
void vma_bpf_close(int fd);
}

long vma_bpf(int command, void* attributes, unsigned size) {
    return vma::sys::raw(SYS_bpf, command, vma::sys::ptr(attributes), long(size));
}
void vma_bpf_close(int fd) { vma::sys::close(fd); }

namespace vma::bpf {
namespace {

uint64_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

int call(int command, bpf_attr& attr) { return int(vma_bpf(command, &attr, sizeof(attr))); }

bpf_attr element(int map, const void* key) {
    bpf_attr attr{};
    attr.map_fd = uint32_t(map);
    attr.key = address(key);
    return attr;
}

int fd_by_id(int command, uint32_t id) {
    bpf_attr attr{};
    attr.map_id = id;  // one union member for every kind of id
    return call(command, attr);
}

}  // namespace

int create_map(uint32_t type, const char* name, uint32_t key_size, uint32_t value_size,
               uint32_t entries, uint32_t flags) {
    bpf_attr attr{};
    attr.map_type = type;
    attr.key_size = key_size;
    attr.value_size = value_size;
    attr.max_entries = entries;
    attr.map_flags = flags;
    std::strncpy(attr.map_name, name, sizeof(attr.map_name) - 1);
    return call(BPF_MAP_CREATE, attr);
}

int update(int map, const void* key, const void* value, uint64_t flags) {
    bpf_attr attr = element(map, key);
    attr.value = address(value);
    attr.flags = flags;
    return call(BPF_MAP_UPDATE_ELEM, attr);
}

int update_batch(int map, const void* keys, const void* values, uint32_t count) {
    bpf_attr attr{};
    attr.batch.keys = address(keys);
    attr.batch.values = address(values);
    attr.batch.count = count;
    attr.batch.map_fd = uint32_t(map);
    return call(BPF_MAP_UPDATE_BATCH, attr);
}

int lookup(int map, const void* key, void* value) {
    bpf_attr attr = element(map, key);
    attr.value = address(value);
    return call(BPF_MAP_LOOKUP_ELEM, attr);
}

int erase(int map, const void* key) {
    bpf_attr attr = element(map, key);
    return call(BPF_MAP_DELETE_ELEM, attr);
}

int take(int map, const void* key, void* value) {
    bpf_attr attr = element(map, key);
    attr.value = address(value);
    return call(BPF_MAP_LOOKUP_AND_DELETE_ELEM, attr);
}

int next_key(int map, const void* key, void* next) {
    bpf_attr attr = element(map, key);
    attr.next_key = address(next);
    return call(BPF_MAP_GET_NEXT_KEY, attr);
}

int attach_tcx(int program, int ifindex, uint32_t attach_type) {
    uint32_t attr[16] = {uint32_t(program), uint32_t(ifindex), attach_type};
    return int(vma_bpf(BPF_LINK_CREATE, attr, sizeof(attr)));
}

int attach_xdp(int program, int ifindex, uint32_t flags) {
    uint32_t attr[16] = {uint32_t(program), uint32_t(ifindex), BPF_XDP, flags};
    return int(vma_bpf(BPF_LINK_CREATE, attr, sizeof(attr)));
}

int next_xdp_link(int ifindex, uint32_t* after, uint32_t* program) {
    bpf_attr next{};
    next.start_id = *after;
    while (call(BPF_LINK_GET_NEXT_ID, next) == 0) {
        next.start_id = *after = next.next_id;
        const int link = link_by_id(next.start_id);
        if (link < 0) continue;  // gone meanwhile
        bpf_link_info info{};
        bpf_attr attr{};
        attr.info.bpf_fd = uint32_t(link);
        attr.info.info_len = sizeof(info);
        attr.info.info = address(&info);
        if (call(BPF_OBJ_GET_INFO_BY_FD, attr) == 0 && info.type == BPF_LINK_TYPE_XDP &&
            info.xdp.ifindex == uint32_t(ifindex)) {
            *program = info.prog_id;
            return link;
        }
        vma_bpf_close(link);
    }
    return -ENOENT;
}

int attached(int ifindex, uint32_t attach_type, Attached* out, unsigned room) {
    constexpr unsigned kMost = 64;  // the kernel's limit per hook point
    uint32_t programs[kMost] = {}, links[kMost] = {};
    struct {
        uint32_t ifindex, type, query_flags, attach_flags;
        uint64_t programs;
        uint32_t count, pad;
        uint64_t program_flags, links, link_flags, revision;
    } attr{};
    attr.ifindex = uint32_t(ifindex);
    attr.type = attach_type;
    attr.programs = address(programs);
    attr.links = address(links);
    attr.count = kMost;
    const long r = vma_bpf(BPF_PROG_QUERY, &attr, sizeof(attr));
    if (r == -ENOENT) return 0;
    if (r < 0) return int(r);
    for (unsigned i = 0; i < attr.count && i < room; ++i) out[i] = {programs[i], links[i]};
    return int(attr.count);
}

int link_by_id(uint32_t id) { return fd_by_id(BPF_LINK_GET_FD_BY_ID, id); }
int program_by_id(uint32_t id) { return fd_by_id(BPF_PROG_GET_FD_BY_ID, id); }
int map_by_id(uint32_t id) { return fd_by_id(BPF_MAP_GET_FD_BY_ID, id); }

int map_exists(uint32_t id) {
    bpf_attr attr{};
    attr.start_id = id - 1;
    const int r = call(BPF_MAP_GET_NEXT_ID, attr);
    if (r == -ENOENT) return 0;
    if (r < 0) return r;
    return attr.next_id == id ? 1 : 0;
}

int program_info(int program, ProgramInfo& out) {
    bpf_prog_info info{};
    info.nr_map_ids = sizeof(out.maps) / sizeof(out.maps[0]);
    info.map_ids = address(out.maps);
    bpf_attr attr{};
    attr.info.bpf_fd = uint32_t(program);
    attr.info.info_len = sizeof(info);
    attr.info.info = address(&info);
    const int r = call(BPF_OBJ_GET_INFO_BY_FD, attr);
    if (r < 0) return r;
    out.id = info.id;
    std::memcpy(out.name, info.name, sizeof(out.name));
    const uint32_t most = sizeof(out.maps) / sizeof(out.maps[0]);
    out.map_count = info.nr_map_ids < most ? info.nr_map_ids : most;
    return 0;
}

int map_info(int map, MapInfo& out) {
    bpf_map_info info{};
    bpf_attr attr{};
    attr.info.bpf_fd = uint32_t(map);
    attr.info.info_len = sizeof(info);
    attr.info.info = address(&info);
    const int r = call(BPF_OBJ_GET_INFO_BY_FD, attr);
    if (r < 0) return r;
    out = {info.id, info.type, info.key_size, info.value_size, info.max_entries, {}};
    std::memcpy(out.name, info.name, sizeof(out.name));
    return 0;
}

}  // namespace vma::bpf
