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

// One store, of eight bytes, as they are in memory.
inline void write_register(void* at, uint64_t bytes) {
    __atomic_store_n(static_cast<uint64_t*>(at), bytes, __ATOMIC_RELAXED);
}
inline void write_record(volatile uint32_t* at, uint32_t value) { *at = __builtin_bswap32(value); }

}  // namespace vma::mlx5
