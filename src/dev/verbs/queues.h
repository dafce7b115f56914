// The queues of a ring, as the verbs made them.
#pragma once

#include "dev/verbs/library.h"

namespace vma {

struct VerbsQueues {
    ibv_qp* qp = nullptr;
    ibv_cq *receive = nullptr, *send = nullptr;  // where its requests complete
    ibv_cq_ex* stamped = nullptr;                // `receive`, where it has times; else null
};

}  // namespace vma
