// Unaligned loads and stores in network (big endian) and host order. Pure.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace vma {

using ByteView = std::span<const uint8_t>;
using ByteSpan = std::span<uint8_t>;

inline uint16_t load_be16(const void* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return __builtin_bswap16(v);
}
inline uint32_t load_be32(const void* p) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
inline void store_be16(void* p, uint16_t v) {
    v = __builtin_bswap16(v);
    std::memcpy(p, &v, 2);
}
inline void store_be32(void* p, uint32_t v) {
    v = __builtin_bswap32(v);
    std::memcpy(p, &v, 4);
}
inline uint32_t load_u32(const void* p) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}

}  // namespace vma
