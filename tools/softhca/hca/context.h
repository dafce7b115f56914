// An opened device: its station on the wire, and the objects that programs hold. The public structs come first in each, so
// that a pointer from the program is one of ours.
//
// Threads: control calls take `control`; data calls take the locks of the queues they touch, in the order send queue,
// receive queue, completion queue.
#pragma once

#include <infiniband/verbs.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softhca/fabric/wire.h"
#include "softhca/hca/device.h"
#include "softhca/hca/notifier.h"

namespace softhca {

struct Qp;
namespace mlx5 {
class Engine;
}

// The owner's part of the station's file behind the tables. Control path only.
class Heap {
  public:
    void reset(uint64_t begin, uint64_t end) { free_ = {{begin, end - begin}}; }
    uint64_t take(uint64_t bytes);  // 64-byte aligned, zeroed by the caller; 0: full
    void give(uint64_t offset, uint64_t bytes);

  private:
    static uint64_t rounded(uint64_t bytes) { return (bytes + 63) & ~uint64_t(63); }
    std::map<uint64_t, uint64_t> free_;  // offset -> bytes, neighbours joined
};

struct Cq {
    ibv_cq_ex ibv{};
    uint32_t index = 0;
    Cqe current{};
    std::mutex raw_mutex;      // raw_qps
    std::vector<Qp*> raw_qps;  // whose frames become completions here
};

struct Context {
    Context();
    ~Context();

    verbs_context verbs{};  // first: ibv_context is its last member
    Device* device = nullptr;
    Wire* wire = nullptr;
    uint32_t index = 0;  // of the station
    std::unique_ptr<StationMap> own;
    Heap heap;
    Notifier notifier;
    std::mutex control;
    uint32_t pds = 0, channels = 0;
    uint64_t dm_used = 0;
    std::atomic<bool> waiting{false};  // some QP may have a request that waits for its peer
    std::atomic<uint64_t> looked_ns[kMaxStations] = {};  // when a receiver was last seen to live
    Cq* cqs[kMaxCqs] = {};
    Qp* qps[kMaxQps] = {};
    std::unique_ptr<mlx5::Engine> engine;  // of a device of kind mlx5
    std::string async_path;

    ibv_context* ibv() { return &verbs.context; }
    Station& station() const { return own->station(); }
};

inline Context& context_of(ibv_context* c) { return *reinterpret_cast<Context*>(verbs_get_ctx(c)); }

// The wire of this process, joined by the first who asks, null with errno; stays to the process's end.
Wire* process_wire();
// Null with errno.
Context* open_context(Device& device);
void close_context(Context* context);
// Fills the tables that verbs.h calls through (operations.cc).
void set_operations(Context& context);

}  // namespace softhca
