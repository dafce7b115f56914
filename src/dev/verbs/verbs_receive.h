// Receiving by the calls of libibverbs. Thread rules: the ring's.
#pragma once

#include "dev/verbs/receive.h"

namespace vma {

class VerbsReceiver final : public QueueReceiver {
  public:
    Status use(const VerbsQueues& queues) override;
    Status post() override;
    bool arm() override { return ibv_req_notify_cq(cq_, 0) == 0; }

  private:
    static constexpr uint32_t kMostPosted = 64;  // by one call of the verb

    int take_completions() override { return stamped_ != nullptr ? poll_stamped() : poll_plain(); }
    int poll_plain();
    int poll_stamped();

    ibv_qp* qp_ = nullptr;
    ibv_cq* cq_ = nullptr;
    ibv_cq_ex* stamped_ = nullptr;
};

}  // namespace vma
