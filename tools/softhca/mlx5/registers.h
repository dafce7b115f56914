// What a program writes for an mlx5 device to see.
#pragma once

#include <endian.h>

#include <cstdint>

#include "softhca/hca/objects.h"

namespace softhca::mlx5 {

// A number that the program writes, in network order.
inline uint32_t read_record(const uint8_t* at) {
    return be32toh(__atomic_load_n(reinterpret_cast<const uint32_t*>(at), __ATOMIC_ACQUIRE));
}

// What the program has written to a register since the last look, all zeros: nothing.
inline uint64_t read_register(uint8_t* at) {
    if (__atomic_load_n(reinterpret_cast<uint64_t*>(at), __ATOMIC_RELAXED) == 0) return 0;
    return __atomic_exchange_n(reinterpret_cast<uint64_t*>(at), 0, __ATOMIC_ACQUIRE);
}

// What its entries and completions call a queue pair.
inline uint32_t number_of(const Context& c, const Qp& qp) { return qp_number(c.index, qp.index); }

}  // namespace softhca::mlx5
