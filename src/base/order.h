// The order of stores as somebody sees it who looks at the memory after this process was stopped at any instruction: the
// rescue of a killed process's connections (engine/salvage.h). The processor keeps it for a thread that was stopped; the
// compiler must be told.
#pragma once

#include <atomic>

namespace vma {

// What is written before it is in memory before what is written after it. Costs no instruction.
inline void order_stores() { std::atomic_signal_fence(std::memory_order_seq_cst); }

}  // namespace vma
