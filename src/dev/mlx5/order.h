// In which order an mlx5 device sees what the processor writes, and the processor what the device writes.
//
// Three kinds of memory take part. Queues and doorbell records are ordinary memory, which the device reads and writes coherently.
// The UAR page is the device's own, mapped write-combining: stores to it may be held back, merged, and overtaken by later stores to
// ordinary memory. What the device requires:
//
//   1. the entries are there before the doorbell record that covers them        before_record()
//   2. the doorbell record is there before the UAR page is written              before_register()
//   3. what was written to the UAR page leaves before the next is written       after_register()
//   4. nothing else of a completion is read before its owner bit                 after_owner()
//
// x86 keeps stores to ordinary memory, and loads from it, in their order: 1 and 4 bind the compiler only. It does not for
// write-combining memory: 2 and 3 are sfence. arm64 keeps neither, and the device is outside of the inner domain: dmb osh, for 3 a dsb.
#pragma once

#include <cstdint>

namespace vma::mlx5 {

#if defined(__x86_64__)
inline void before_record() { asm volatile("" ::: "memory"); }
inline void before_register() { asm volatile("sfence" ::: "memory"); }
inline void after_register() { asm volatile("sfence" ::: "memory"); }
inline void after_owner() { asm volatile("" ::: "memory"); }
#elif defined(__aarch64__)
inline void before_record() { asm volatile("dmb oshst" ::: "memory"); }
inline void before_register() { asm volatile("dmb oshst" ::: "memory"); }
inline void after_register() { asm volatile("dsb st" ::: "memory"); }
inline void after_owner() { asm volatile("dmb oshld" ::: "memory"); }
#else
#error "the order of stores to a device is not known for this processor"
#endif

// Eight bytes, as they are in memory, by one store.
inline void write_register(uint8_t* at, const uint8_t* bytes) {
    uint64_t word;
    __builtin_memcpy(&word, bytes, sizeof word);
    __atomic_store_n(reinterpret_cast<uint64_t*>(at), word, __ATOMIC_RELAXED);
}
// 64 bytes, from the first on.
inline void write_block(uint8_t* at, const uint8_t* bytes) {
    for (unsigned i = 0; i < 64; i += 8) write_register(at + i, bytes + i);
}
inline void write_record(volatile uint32_t* at, uint32_t value) { *at = __builtin_bswap32(value); }

}  // namespace vma::mlx5
