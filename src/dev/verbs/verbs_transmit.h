// Sending by the calls of libibverbs. Thread rules: the ring's.
#pragma once

#include "dev/verbs/transmit.h"

namespace vma {

class VerbsTransmitter final : public QueueTransmitter {
  public:
    Status use(const VerbsQueues& queues) override;
    void reclaim() override;

  private:
    int send_one(const TxFrame& f) override;

    ibv_qp* qp_ = nullptr;
    ibv_cq* cq_ = nullptr;
};

}  // namespace vma
