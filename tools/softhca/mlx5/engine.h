// Devices of kind mlx5: the queues of a raw Ethernet QP and of its completion queues as mlx5dv_init_obj(3) shows them, in memory
// of the process, and the engine that works on them: it reads doorbell records and UAR writes, carries out what was posted by the
// switch, and writes completions. Who never looks at these queues uses the device by verbs.h as any other; a request completes
// where it was posted.
//
// Threads: any; one lock. The engine runs in a thread of its own, or where SOFTHCA says engine=kick only in kick().
#pragma once

#include <infiniband/mlx5dv.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "softhca/hca/objects.h"
#include "softhca/mlx5/wqe.h"

namespace softhca::mlx5 {

// A device's page for doorbells: where a send queue is rung, and where a completion queue is armed.
constexpr uint32_t kBlueFlameAt = 0x800, kBlueFlameBytes = 256, kPage = 4096;

struct Unmap {
    size_t bytes = 0;
    void operator()(uint8_t* p) const;
};
using Pages = std::unique_ptr<uint8_t, Unmap>;
// Zeroed, from a page's beginning; null: no memory.
Pages make_pages(size_t bytes);

struct CompletionQueue {
    Cq* cq = nullptr;
    Pages memory, doorbells, uar;
    uint32_t entries = 0;   // a power of two
    uint32_t produced = 0;  // free running
};

struct QueuePair {
    Qp* qp = nullptr;
    Pages send, receive, doorbells, uar;
    uint32_t blocks = 0;               // of the send queue
    uint32_t entries = 0, stride = 0;  // of the receive queue
    uint16_t sent = 0, received = 0;   // blocks and entries that the engine is through with
    uint16_t rung = 0;                 // blocks that the program has rung for
    bool failed = false;               // what is posted is flushed
};

class Engine {
  public:
    explicit Engine(Context& c);
    ~Engine();

    // 0, or the error of mlx5dv_init_obj.
    int show(ibv_qp* qp, mlx5dv_qp* out);
    int show(ibv_cq* cq, mlx5dv_cq* out);
    // The object goes; the QP goes to RESET.
    void forget(const Qp& qp);
    void forget(const Cq& cq);
    void reset(const Qp& qp);

    // One look at all queues: how much there was to do.
    unsigned kick();

  private:
    QueuePair* find(const Qp& qp);
    CompletionQueue* find(const Cq& cq);
    CompletionQueue* queue_of(ibv_cq* cq);
    unsigned work(QueuePair& q);
    unsigned hear(QueuePair& q);
    unsigned send(QueuePair& q);
    unsigned receive(QueuePair& q);
    ibv_wc_status send_one(QueuePair& q, const SendRequest& request);
    uint8_t store(QueuePair& q, const ReceiveRequest& request, const FrameSlot& slot);
    void fail(QueuePair& q, const char* what, const std::string& entry);
    std::string entry_at(const QueuePair& q, uint16_t at) const;
    void flush(QueuePair& q);
    void complete_send(QueuePair& q, const SendRequest& request, uint16_t at, uint8_t syndrome);
    void complete_receive(QueuePair& q, const FrameSlot* slot, uint8_t syndrome);
    void push(CompletionQueue& cq, const mlx5_cqe64& cqe);
    unsigned hear(CompletionQueue& cq);
    SendRules rules_of(const QueuePair& q) const;
    void start_thread();

    Context& c_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<QueuePair>> pairs_;
    std::vector<std::unique_ptr<CompletionQueue>> queues_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

// Null: it is not of kind mlx5.
Engine* engine_of(ibv_context* context);

}  // namespace softhca::mlx5
