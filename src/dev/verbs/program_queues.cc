#include "dev/verbs/program_queues.h"

#include <errno.h>

#include "dev/verbs/mlx5.h"

namespace vma {
namespace {

constexpr uint32_t kPieces = 2;  // of memory in a request: headers, and what follows them

}  // namespace

Result<std::unique_ptr<ProgramQueues>> ProgramQueues::open(VerbsPort& port, uint32_t requests) {
    std::unique_ptr<ProgramQueues> queues(new ProgramQueues(port));
    const Status made = queues->make(requests);
    if (!made) return Errno{made.error()};
    return queues;
}

Status ProgramQueues::make(uint32_t requests) {
    port_.follow_fds();
    const verbs_context* const table = verbs_get_ctx_op(port_.context(), create_qp_ex);
    if (table == nullptr) return Errno{EOPNOTSUPP};
    pd_ = verbs().alloc_pd(port_.context());
    if (pd_ == nullptr) return Errno{errno};
    if (const Status opened = bell_.open(port_); !opened) return opened;
    cq_ = verbs().create_cq(port_.context(), int(requests), nullptr, bell_.channel(), 0);
    if (cq_ == nullptr) return Errno{errno};
    ibv_qp_init_attr_ex a{};
    a.send_cq = a.recv_cq = cq_;
    a.cap = {requests, 0, kPieces, 0, 0};
    a.qp_type = IBV_QPT_RAW_PACKET;
    a.pd = pd_;
    a.comp_mask = IBV_QP_INIT_ATTR_PD;
    qp_ = table->create_qp_ex(port_.context(), &a);
    if (qp_ == nullptr) return Errno{errno};
    ibv_qp_attr to{};
    to.port_num = port_.number();
    for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
        to.qp_state = state;
        const int port = state == IBV_QPS_INIT ? IBV_QP_PORT : 0;
        if (const int error = verbs().modify_qp(qp_, &to, IBV_QP_STATE | port)) return Errno{error};
    }
    return {};
}

ProgramQueues::~ProgramQueues() {
    port_.follow_fds();
    if (qp_ != nullptr) verbs().destroy_qp(qp_);
    if (cq_ != nullptr) {
        bell_.take();
        verbs().destroy_cq(cq_);
    }
    bell_.close();
    if (pd_ == nullptr) return;
    memory_.clear(verbs());
    verbs().dealloc_pd(pd_);
}

Status ProgramQueues::arm(int* result) {
    bell_.take();
    *result = ibv_req_notify_cq(cq_, 0);
    return {};
}

Status ProgramQueues::moderate(uint32_t frames, uint32_t usec) {
    port_.follow_fds();
    return moderate_queue(port_, cq_, {frames, usec});
}

Status ProgramQueues::register_memory(void* at, size_t bytes, uint32_t* key) {
    port_.follow_fds();
    return memory_.add(verbs(), pd_, at, bytes, key);
}

Status ProgramQueues::deregister_memory(void* at, size_t bytes) {
    port_.follow_fds();
    return memory_.remove(verbs(), at, bytes);
}

DeviceFacts ProgramQueues::facts() const { return facts_of(port_, qp_, cq_, nullptr); }

DeviceFacts facts_of(const VerbsPort& port, ibv_qp* qp, ibv_cq* send, ibv_cq* receive) {
    DeviceFacts facts;
    facts.vendor_id = port.attributes().orig_attr.vendor_id;
    facts.part_id = port.attributes().orig_attr.vendor_part_id;
    const ibv_packet_pacing_caps& pacing = port.attributes().packet_pacing_caps;
    facts.paces = pacing.qp_rate_limit_max != 0 &&
                  ibv_is_qpt_supported(pacing.supported_qpts, IBV_QPT_RAW_PACKET);
    describe_mlx5_queues(qp, send, receive, facts);
    return facts;
}

}  // namespace vma
