// Memory regions and device memory.
#include <sys/mman.h>

#include <cstring>

#include "softhca/hca/objects.h"

namespace softhca {
namespace {

// Is all of it mapped in this process? A device that cannot pin memory refuses it.
bool is_mapped(const void* addr, uint64_t length) {
    constexpr uint64_t kPage = 4096;
    const uint64_t begin = uint64_t(addr) & ~(kPage - 1), end = uint64_t(addr) + length;
    if (end < uint64_t(addr)) return false;
    return length == 0 ||
           msync(reinterpret_cast<void*>(begin), end - begin, MS_ASYNC) == 0;  // ENOMEM: a hole
}

}  // namespace

ibv_mr* register_memory(ibv_pd* pd, void* addr, uint64_t length, uint64_t iova, unsigned access) {
    constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB |
                                IBV_ACCESS_OPTIONAL_RANGE;
    constexpr unsigned kNeedLocal = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    Context& c = context_of(pd->context);
    errno = 0;
    if (c.station().fatal)
        errno = EIO;
    else if (access & ~kKnown)
        errno = EOPNOTSUPP;
    else if ((access & kNeedLocal) && !(access & IBV_ACCESS_LOCAL_WRITE))
        errno = EINVAL;  // ibv_reg_mr(3)
    else if (!is_mapped(addr, length))
        errno = EFAULT;
    if (errno) return nullptr;
    std::lock_guard locked(c.control);
    Station& s = c.station();
    for (uint32_t i = 2; i < kMaxMrs; i++) {  // 0x100 ends lists of an mlx5 device: no key is that
        MrEntry& e = s.mrs[i];
        if (e.key.load(std::memory_order_relaxed)) continue;
        auto mr = std::make_unique<Mr>();
        const uint32_t key = i << 8 | (++e.uses & 0xff);
        e.pd = domain(pd);
        e.access = access;
        e.addr = uint64_t(addr);
        e.iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
        e.length = length;
        mr->ibv = {pd->context, pd, addr, length, i, key, key};
        mr->index = i;
        e.key.store(key, std::memory_order_release);
        return &mr.release()->ibv;
    }
    errno = ENOMEM;
    return nullptr;
}

int deregister_memory(ibv_mr* ibv) {
    Mr* mr = reinterpret_cast<Mr*>(ibv);
    context_of(ibv->context).station().mrs[mr->index].key.store(0, std::memory_order_release);
    delete mr;
    return 0;
}

ibv_dm* allocate_dm(ibv_context* ibv, ibv_alloc_dm_attr* attr) {
    Context& c = context_of(ibv);
    std::lock_guard locked(c.control);
    errno = EINVAL;
    if (attr->comp_mask || attr->log_align_req > 6 || !attr->length) return nullptr;
    errno = ENOMEM;
    if (c.dm_used + attr->length > c.device->config.dm_bytes) return nullptr;
    auto dm = std::make_unique<Dm>();
    dm->offset = c.heap.take(attr->length);
    if (!dm->offset) return nullptr;
    dm->bytes = attr->length;
    c.dm_used += dm->bytes;
    dm->ibv.context = ibv;
    dm->ibv.memcpy_to_dm = [](ibv_dm* d, uint64_t at, const void* from, size_t n) {
        const Dm& m = *reinterpret_cast<Dm*>(d);
        if (at > m.bytes || n > m.bytes - at) return EINVAL;
        std::memcpy(context_of(d->context).own->at<char>(m.offset + at), from, n);
        return 0;
    };
    dm->ibv.memcpy_from_dm = [](void* to, ibv_dm* d, uint64_t at, size_t n) {
        const Dm& m = *reinterpret_cast<Dm*>(d);
        if (at > m.bytes || n > m.bytes - at) return EINVAL;
        std::memcpy(to, context_of(d->context).own->at<char>(m.offset + at), n);
        return 0;
    };
    std::memset(c.own->at<char>(dm->offset), 0, dm->bytes);
    return &dm.release()->ibv;
}

int free_dm(ibv_dm* ibv) {
    Dm* dm = reinterpret_cast<Dm*>(ibv);
    Context& c = context_of(ibv->context);
    std::lock_guard locked(c.control);
    c.heap.give(dm->offset, dm->bytes);
    c.dm_used -= dm->bytes;
    delete dm;
    return 0;
}

ibv_mr* register_dm(ibv_pd* pd, ibv_dm* ibv, uint64_t offset, size_t length, unsigned access) {
    const Dm& dm = *reinterpret_cast<Dm*>(ibv);
    if (!(access & IBV_ACCESS_ZERO_BASED) || offset > dm.bytes || length > dm.bytes - offset) {
        errno = EINVAL;
        return nullptr;
    }
    return register_memory(pd, context_of(ibv->context).own->at<char>(dm.offset + offset), length,
                           0, access);
}

}  // namespace softhca
