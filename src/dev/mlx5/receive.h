// Receiving by the queues of an mlx5 device in memory. Thread rules: the ring's.
#pragma once

#include "dev/mlx5/completion_queue.h"
#include "dev/verbs/receive.h"

namespace vma {

class Mlx5Receiver final : public QueueReceiver {
  public:
    Mlx5Receiver(const Mlx5Library& library, unsigned (*kick)(ibv_context*), bool stamps)
        : library_(library), kick_(kick), stamps_(stamps) {}
    Status use(const VerbsQueues& queues) override;
    Status post() override;
    void started() override;
    bool arm() override;
    void rung(unsigned times) override { completions_.rung(times); }
    void forget_requests() override;

  private:
    int take_completions() override;
    void complete(const mlx5_cqe64& entry);

    const Mlx5Library& library_;
    Kick kick_;
    const bool stamps_;
    mlx5::CompletionQueue completions_;
    uint8_t* entries_ = nullptr;
    volatile uint32_t* record_ = nullptr;
    uint32_t count_ = 0, stride_ = 0;
    uint32_t given_ = 0;  // entries, free running since the QP was reset
};

}  // namespace vma
