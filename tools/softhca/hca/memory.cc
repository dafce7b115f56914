#include "softhca/hca/memory.h"

#include <algorithm>
#include <cstring>

namespace softhca {
namespace {

void copy_here(const iovec* to, uint32_t to_count, const iovec* from, uint32_t from_count) {
    size_t to_at = 0, from_at = 0;
    while (to_count && from_count) {
        const size_t n = std::min(to->iov_len - to_at, from->iov_len - from_at);
        std::memcpy(static_cast<char*>(to->iov_base) + to_at,
                    static_cast<const char*>(from->iov_base) + from_at, n);
        to_at += n;
        from_at += n;
        if (to_at == to->iov_len) to++, to_count--, to_at = 0;
        if (from_at == from->iov_len) from++, from_count--, from_at = 0;
    }
}

size_t total(const iovec* v, uint32_t count) {
    size_t sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += v[i].iov_len;
    return sum;
}

}  // namespace

std::optional<uint64_t> translate(const Station& owner, uint32_t key, uint32_t pd, uint64_t iova,
                                  uint64_t length, uint32_t access) {
    const MrEntry& mr = owner.mrs[(key >> 8) % kMaxMrs];
    if (key == 0 || mr.key.load(std::memory_order_acquire) != key || mr.pd != pd)
        return std::nullopt;
    if ((mr.access & access) != access) return std::nullopt;
    if (iova < mr.iova || length > mr.length || iova - mr.iova > mr.length - length)
        return std::nullopt;
    return mr.addr + (iova - mr.iova);
}

bool translate_list(const Station& owner, uint32_t pd, const ibv_sge* list, uint32_t count,
                    uint32_t access, iovec* out, uint64_t* bytes) {
    *bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        const auto at = translate(owner, list[i].lkey, pd, list[i].addr, list[i].length, access);
        if (!at) return false;
        out[i] = {reinterpret_cast<void*>(*at), list[i].length};
        *bytes += list[i].length;
    }
    return true;
}

bool copy_between(uint32_t to_pid, const iovec* to, uint32_t to_count, uint32_t from_pid,
                  const iovec* from, uint32_t from_count) {
    const size_t bytes = std::min(total(to, to_count), total(from, from_count));
    if (bytes == 0) return true;
    const uint32_t me = own_pid();
    if (to_pid == me && from_pid == me) {
        copy_here(to, to_count, from, from_count);
        return true;
    }
    const int before = errno;
    const ssize_t n = to_pid == me
                          ? process_vm_readv(pid_t(from_pid), to, to_count, from, from_count, 0)
                          : process_vm_writev(pid_t(to_pid), from, from_count, to, to_count, 0);
    errno = before;
    return n == ssize_t(bytes);
}

}  // namespace softhca
