// DeviceQueues: what a program may ask of a ring that has the queues of a device (the extra API), beside what every ring does.
// Thread rules: the ring's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace vma {

// Where a queue's memory is, for a program that drives it itself. All zero: the device's library does not tell.
struct CompletionQueueFacts {
    void* buf = nullptr;
    volatile uint32_t* doorbell = nullptr;
    uint32_t entries = 0, entry_bytes = 0, number = 0;
    void* uar = nullptr;
};
struct WorkQueueFacts {
    void* buf = nullptr;
    uint32_t entries = 0, stride = 0;
    volatile uint32_t* doorbell = nullptr;
    CompletionQueueFacts completions;
};
struct DeviceFacts {
    uint32_t vendor_id = 0, part_id = 0;
    bool paces = false;
    bool has_queues = false;  // what follows is known; `receive` only if has_receive
    bool has_receive = false;
    WorkQueueFacts send, receive;
    uint32_t send_number = 0;
    void* blueflame = nullptr;
    uint32_t blueflame_bytes = 0;
};

class DeviceQueues {
  public:
    // Wake-ups after so many frames, or so long after the first of them; 0 or 1 frame: at once. EOPNOTSUPP: the device cannot.
    virtual Status moderate(uint32_t frames, uint32_t usec) = 0;
    // Memory of the program that requests may name by *key. Counted: as often as registered with the same bounds it has to be
    // taken back. Errors of ibv_reg_mr(3).
    virtual Status register_memory(void* at, size_t bytes, uint32_t* key) = 0;
    virtual Status deregister_memory(void* at, size_t bytes) = 0;  // ENOENT: it is not registered
    virtual DeviceFacts facts() const = 0;

    virtual int wake_fd() const = 0;  // readable when a completion has come, if that was asked for
    // For queues that the program polls itself: wake_fd() tells of the next completion, and of no earlier one. *result: what
    // the device says to that (ibv_req_notify_cq(3)). EOPNOTSUPP: the library does it.
    virtual Status arm(int* result) = 0;

    // Queues for sending on the same device that only the program uses; they are closed with these. null: not opened yet.
    virtual DeviceQueues* program_queues() { return nullptr; }
    // Once or more often. EOPNOTSUPP: these are such queues. Errors of the verbs.
    virtual Result<DeviceQueues*> open_program_queues() { return Errno{EOPNOTSUPP}; }

  protected:
    ~DeviceQueues() = default;
};

}  // namespace vma
