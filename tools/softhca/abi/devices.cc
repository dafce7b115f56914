// The exported functions of libibverbs: devices, ports, events. Contracts: their man pages.
#include "softhca/abi/exported.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "softhca/hca/objects.h"

using namespace softhca;

namespace softhca {
__be64 guid_of(const uint8_t* mac);
}

// verbs.h gives some of these a macro or a default of an older library.
#undef ibv_query_port
#undef ibv_get_device_list

EXPORTED ibv_device** ibv_get_device_list(int* count) {
    const std::vector<Device*>& all = devices();
    ibv_device** list = static_cast<ibv_device**>(std::calloc(all.size() + 1, sizeof(*list)));
    if (!list) return nullptr;
    for (size_t i = 0; i < all.size(); i++) list[i] = &all[i]->ibv;
    if (count) *count = int(all.size());
    return list;
}
EXPORTED void ibv_free_device_list(ibv_device** list) { std::free(list); }
EXPORTED const char* ibv_get_device_name(ibv_device* d) { return d->name; }
EXPORTED int ibv_get_device_index(ibv_device* d) {
    return int(reinterpret_cast<Device*>(d)->index);
}
EXPORTED __be64 ibv_get_device_guid(ibv_device* d) {
    return guid_of(reinterpret_cast<Device*>(d)->config.mac);
}
EXPORTED ibv_context* ibv_open_device(ibv_device* d) {
    Context* c = open_context(*reinterpret_cast<Device*>(d));
    return c ? c->ibv() : nullptr;
}
EXPORTED int ibv_close_device(ibv_context* c) {
    close_context(&context_of(c));
    return 0;
}

EXPORTED int ibv_query_device(ibv_context* c, ibv_device_attr* attr) {
    ibv_device_attr_ex all;
    const int error = query_device(c, &all);
    *attr = all.orig_attr;
    return error;
}
// Programs built against old headers have a structure that ends before port_cap_flags2, where this writes nothing new.
EXPORTED int ibv_query_port(ibv_context* c, uint8_t port, _compat_ibv_port_attr* attr) {
    ibv_port_attr all;
    const int error = query_port(c, port, &all);
    if (!error) std::memcpy(attr, &all, offsetof(ibv_port_attr, port_cap_flags2));
    return error;
}
EXPORTED int ibv_query_gid(ibv_context* c, uint8_t port, int index, ibv_gid* gid) {
    const Station& s = context_of(c).station();
    if (port != 1 || index < 0 || uint32_t(index) >= kMaxGids) return errno = EINVAL, -1;
    *gid = s.gids[index];  // an empty entry is all zeros
    return 0;
}
EXPORTED int ibv_query_gid_type(ibv_context* c, uint8_t port, unsigned index, unsigned* type) {
    const Station& s = context_of(c).station();
    if (port != 1 || index >= kMaxGids) return errno = EINVAL, -1;
    // Of the two RoCE versions; IB and RoCE v1 share the first number here (kernel attribute gid_attrs/types).
    *type = s.gid_types[index] == IBV_GID_TYPE_ROCE_V2;
    return 0;
}
EXPORTED int _ibv_query_gid_ex(ibv_context* c, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                               uint32_t flags, size_t size) {
    const Station& s = context_of(c).station();
    if (port != 1 || flags || index >= kMaxGids || size < sizeof(*entry)) return EINVAL;
    if (index >= s.gid_count) return ENODATA;
    *entry = {s.gids[index], index, port, s.gid_types[index], s.ifindex};
    return 0;
}
EXPORTED ssize_t _ibv_query_gid_table(ibv_context* c, ibv_gid_entry* entries, size_t most,
                                      uint32_t flags, size_t size) {
    const size_t count = context_of(c).station().gid_count;
    if (flags || size < sizeof(*entries) || most < count) return -EINVAL;
    for (uint32_t i = 0; i < count; i++) _ibv_query_gid_ex(c, 1, i, entries + i, 0, size);
    return ssize_t(count);
}
EXPORTED int ibv_query_pkey(ibv_context*, uint8_t port, int index, __be16* pkey) {
    if (port != 1 || index != 0) return errno = EINVAL, -1;
    *pkey = 0xffff;
    return 0;
}
EXPORTED int ibv_get_pkey_index(ibv_context*, uint8_t port, __be16 pkey) {
    if (port != 1 || (pkey & htobe16(0x7fff)) != htobe16(0x7fff)) return errno = EINVAL, -1;
    return 0;
}

EXPORTED int ibv_get_async_event(ibv_context* c, ibv_async_event* event) {
    AsyncRecord r;
    ssize_t n;
    do n = read(c->async_fd, &r, sizeof(r));
    while (n < 0 && errno == EINTR);
    if (n != sizeof(r)) return -1;
    event->event_type = ibv_event_type(r.type);
    const bool port = r.type == IBV_EVENT_PORT_ACTIVE || r.type == IBV_EVENT_PORT_ERR ||
                      r.type == IBV_EVENT_GID_CHANGE;
    if (port)
        event->element.port_num = int(r.port);
    else
        event->element.cq = reinterpret_cast<ibv_cq*>(r.element);
    return 0;
}
// Objects do not wait for their events here: nothing is left to do.
EXPORTED void ibv_ack_async_event(ibv_async_event*) {}

// Memory is copied, never pinned, so a fork needs no preparation.
EXPORTED int ibv_fork_init() { return 0; }
EXPORTED ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }

// There is no sysfs of a device that the kernel does not know.
EXPORTED const char* ibv_get_sysfs_path() { return "/sys"; }
// Only the counter of frames that found no room; those of all stations of the device.
EXPORTED int ibv_read_sysfs_file(const char* directory, const char* name, char* text, size_t size) {
    if (std::strcmp(name, "ports/1/hw_counters/out_of_buffer") != 0) return -1;
    const std::vector<Device*>& all = devices();
    const auto device = std::find_if(all.begin(), all.end(), [&](const Device* d) {
        return !std::strcmp(d->ibv.ibdev_path, directory);
    });
    Wire* wire = device == all.end() ? nullptr : process_wire();
    if (!wire) return -1;
    uint64_t lost = 0;
    for (uint32_t i = 0; i < kMaxStations; i++) {
        StationMap* s = wire->station(i);
        if (s && (*device)->config.name == (*s)->device)
            lost += (*s)->dropped.load(std::memory_order_relaxed);
    }
    return std::snprintf(text, size, "%llu", static_cast<unsigned long long>(lost));
}
EXPORTED int ibv_query_ece(ibv_qp*, ibv_ece* ece) {
    *ece = {};
    return 0;
}
EXPORTED int ibv_set_ece(ibv_qp*, ibv_ece* ece) { return ece->options ? EOPNOTSUPP : 0; }
