// ProgramQueues: a raw Ethernet queue pair that only sends, made for the program alone ("external memory" in the words of the
// extra API). Nobody here posts to it or polls it, and what fails in it is the program's affair. Thread rules: the ring's.
#pragma once

#include <memory>

#include "dev/device_queues.h"
#include "dev/verbs/doorbell.h"
#include "dev/verbs/port.h"
#include "dev/verbs/user_memory.h"

namespace vma {

class ProgramQueues final : public DeviceQueues {
  public:
    // `requests`: how many the queue has room for. `port` outlives it.
    static Result<std::unique_ptr<ProgramQueues>> open(VerbsPort& port, uint32_t requests);
    ~ProgramQueues();

    int wake_fd() const override { return bell_.fd(); }
    Status arm(int* result) override;
    Status moderate(uint32_t frames, uint32_t usec) override;
    Status register_memory(void* at, size_t bytes, uint32_t* key) override;
    Status deregister_memory(void* at, size_t bytes) override;
    DeviceFacts facts() const override;

  private:
    explicit ProgramQueues(VerbsPort& port) : port_(port) {}
    Status make(uint32_t requests);
    const VerbsLibrary& verbs() const { return port_.library(); }

    VerbsPort& port_;
    ibv_pd* pd_ = nullptr;
    Doorbell bell_;
    ibv_cq* cq_ = nullptr;
    ibv_qp* qp_ = nullptr;
    UserMemory memory_;
};

// The device's numbers, and where these queues are; `receive` null: there is no such queue.
DeviceFacts facts_of(const VerbsPort& port, ibv_qp* qp, ibv_cq* send, ibv_cq* receive);

}  // namespace vma
