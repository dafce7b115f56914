// What a program asks of one ring, named by its descriptor: the queues of its device. Rings without a device say EOPNOTSUPP.
#include <errno.h>

#include <cstring>

#include "base/log.h"
#include "dev/device_queues.h"
#include "engine/runtime.h"
#include "extra/boundary.h"
#include "extra/functions.h"
#include "extra/ring_options.h"

namespace vma::extra {
namespace {

// ask(DeviceQueues&) returns a Status; it runs under the lease of the ring. The descriptor is the ring's, or that of the queues
// which the program has on its device.
template <class Ask>
int ask_queues(int ring_fd, const Ask& ask) {
    for (Shard* shard : Runtime::shards()) {
        if (ring_fd < 0) break;
        LeaseGuard lease(shard->lease());
        DeviceQueues* queues = shard->queues();
        if (shard->wake_fd() != ring_fd) {
            queues = queues ? queues->program_queues() : nullptr;
            if (queues == nullptr || queues->wake_fd() != ring_fd) continue;
        }
        if (queues == nullptr) return -EOPNOTSUPP;
        const Status done = ask(*queues);
        return done ? 0 : -done.error();
    }
    return -EBADFD;
}

template <class Ask>
int ask_ring(int ring_fd, const Ask& ask) {
    return ask_library([&] { return ask_queues(ring_fd, ask); });
}

hw_wq_data in_their_words(const WorkQueueFacts& queue) {
    const CompletionQueueFacts& c = queue.completions;
    hw_wq_data data{};
    data.buf = queue.buf;
    data.wqe_cnt = queue.entries;
    data.stride = queue.stride;
    data.dbrec = queue.doorbell;
    data.cq_data.buf = c.buf;
    data.cq_data.dbrec = c.doorbell;
    data.cq_data.cq_size = c.entries;
    data.cq_data.cqe_size = c.entry_bytes;
    data.cq_data.cqn = c.number;
    data.cq_data.uar = c.uar;
    return data;
}

}  // namespace

// The indexes of VMA's own driver (cons_idx, head, tail) stay null: libibverbs keeps them, and to itself.
int get_ring_direct_descriptors(int ring_fd, vma_mlx_hw_device_data* data) {
    return ask_ring(ring_fd, [=](DeviceQueues& queues) -> Status {
        if (data == nullptr) return Errno{EINVAL};
        const DeviceFacts facts = queues.facts();
        *data = {};
        data->valid_mask = DATA_VALID_DEV;
        data->dev_data = {facts.vendor_id, facts.part_id, facts.paces ? uint32_t(VMA_HW_PP_EN) : 0};
        if (!facts.has_queues) return {};
        data->valid_mask |= DATA_VALID_SQ | (facts.has_receive ? DATA_VALID_RQ : 0);
        data->sq_data.wq_data = in_their_words(facts.send);
        data->sq_data.sq_num = facts.send_number;
        data->sq_data.bf.reg = facts.blueflame;
        data->sq_data.bf.size = facts.blueflame_bytes;
        if (facts.has_receive) data->rq_data.wq_data = in_their_words(facts.receive);
        return {};
    });
}

int register_memory_on_ring(int ring_fd, void* addr, size_t length, uint32_t* key) {
    return ask_ring(ring_fd, [=](DeviceQueues& queues) -> Status {
        if (addr == nullptr || length == 0 || key == nullptr) return Errno{EINVAL};
        return queues.register_memory(addr, length, key);
    });
}

int deregister_memory_on_ring(int ring_fd, void* addr, size_t length) {
    return ask_ring(ring_fd, [=](DeviceQueues& queues) -> Status {
        if (addr == nullptr || length == 0) return Errno{EINVAL};
        return queues.deregister_memory(addr, length);
    });
}

// Arming is for queues that the program polls itself, and returns what the device says; the library arms its own when somebody
// sleeps.
int modify_ring(vma_modify_ring_attr* attr) {
    if (attr == nullptr) return ask_library([] { return -EINVAL; });
    int said = 0;
    const int result = ask_ring(attr->ring_fd, [&](DeviceQueues& queues) -> Status {
        if (attr->comp_bit_mask & VMA_MODIFY_RING_CQ_ARM) return queues.arm(&said);
        if (attr->comp_bit_mask & VMA_MODIFY_RING_CQ_MODERATION)
            return queues.moderate(attr->cq_moderation.cq_moderation_count,
                                   attr->cq_moderation.cq_moderation_period_usec);
        return Errno{EINVAL};
    });
    return result == 0 ? said : result;
}

int program_queues_of(int ring_fd) {
    int fd = -1;
    const int result = ask_queues(ring_fd, [&](DeviceQueues& queues) -> Status {
        const Result<DeviceQueues*> own = queues.open_program_queues();
        if (!own) return Errno{own.error()};
        fd = (*own)->wake_fd();
        return {};
    });
    if (result == 0) return fd;
    vma_log(warning, "extra", "a ring of external memory needs the queues of a device: {}",
            result == -EOPNOTSUPP ? "this interface has none" : std::strerror(-result));
    return result;
}

}  // namespace vma::extra
