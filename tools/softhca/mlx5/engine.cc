#include "softhca/mlx5/engine.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "softhca/hca/memory.h"
#include "softhca/hca/queues.h"
#include "softhca/hca/transport.h"
#include "softhca/mlx5/registers.h"
#include "softhca/raw/fields.h"
#include "softhca/raw/offload.h"
#include "softhca/raw/raw.h"

namespace softhca::mlx5 {
namespace {

using vma::ByteView;
using vma::load_be32;

uint8_t syndrome_of(ibv_wc_status status) {
    switch (status) {
        case IBV_WC_SUCCESS:
            return 0;
        case IBV_WC_LOC_LEN_ERR:
            return MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
        case IBV_WC_LOC_PROT_ERR:
            return MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
        case IBV_WC_WR_FLUSH_ERR:
            return MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
        case IBV_WC_LOC_ACCESS_ERR:
            return MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR;
        default:
            return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
    }
}

const char* meaning_of(uint8_t syndrome) {
    switch (syndrome) {
        case MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR:
            return "its length is none that fits";
        case MLX5_CQE_SYNDROME_LOCAL_PROT_ERR:
            return "a key does not give the memory that is named";
        default:
            return "the device cannot do that";
    }
}

}  // namespace

void Unmap::operator()(uint8_t* p) const { munmap(p, bytes); }

Pages make_pages(size_t bytes) {
    bytes = (bytes + kPage - 1) / kPage * kPage;
    void* const p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return Pages(p == MAP_FAILED ? nullptr : static_cast<uint8_t*>(p), Unmap{bytes});
}

Engine::Engine(Context& c) : c_(c) {}

Engine::~Engine() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
}

void Engine::start_thread() {
    if (c_.device->config.kicked || thread_.joinable()) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's threads
    thread_ = std::thread([this] {
        constexpr unsigned kPatience = 256;  // looks before it lets others have the processor
        constexpr timespec kPause{0, 50'000};
        for (unsigned idle = 0; !stop_.load(std::memory_order_relaxed);) {
            idle = kick() ? 0 : idle + 1;
            if (idle > kPatience)
                nanosleep(&kPause, nullptr);
            else if (idle != 0)
                sched_yield();
        }
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

QueuePair* Engine::find(const Qp& qp) {
    for (auto& q : pairs_)
        if (q->qp == &qp) return q.get();
    return nullptr;
}

CompletionQueue* Engine::find(const Cq& cq) {
    for (auto& q : queues_)
        if (q->cq == &cq) return q.get();
    return nullptr;
}

int Engine::show(ibv_cq* cq, mlx5dv_cq* out) {
    std::lock_guard locked(mutex_);
    const CompletionQueue* const q = queue_of(cq);
    if (!q) return ENOMEM;
    *out = {};
    out->buf = q->memory.get();
    out->dbrec = reinterpret_cast<__be32*>(q->doorbells.get());
    out->cqe_cnt = q->entries;
    out->cqe_size = sizeof(mlx5_cqe64);
    out->cq_uar = q->uar.get();
    out->cqn = q->cq->index;
    start_thread();
    return 0;
}

int Engine::show(ibv_qp* ibv, mlx5dv_qp* out) {
    Qp& qp = qp_of(ibv);
    const QpShared& s = shared(qp, c_);
    if (s.use != QpUse::raw || s.srq) return EOPNOTSUPP;
    std::lock_guard locked(mutex_);
    QueuePair* q = find(qp);
    if (!q) {
        auto made = std::make_unique<QueuePair>();
        // Room for each request that verbs.h could post: control, Ethernet with 18 bytes, and either pointers or inlined bytes.
        const uint32_t data = std::max(s.send_sge * kSegment, s.send_inline + 4);
        const uint32_t request = (3 * kSegment + data + kBlock - 1) / kBlock;
        made->qp = &qp;
        made->blocks = ring_slots(std::min(s.send_capacity * request, 0x8000u));
        made->stride = ring_slots(std::max(s.recv.max_sge, 1u)) * kSegment;
        made->entries = s.recv.mask + 1;
        made->send = make_pages(size_t(made->blocks) * kBlock);
        made->receive = make_pages(size_t(made->entries) * made->stride);
        made->doorbells = make_pages(kPage);
        made->uar = make_pages(kPage);
        if (!made->send || !made->receive || !made->doorbells || !made->uar) return ENOMEM;
        if (!queue_of(ibv->send_cq) || !queue_of(ibv->recv_cq)) return ENOMEM;
        pairs_.push_back(std::move(made));
        q = pairs_.back().get();
    }
    *out = {};
    out->dbrec = reinterpret_cast<__be32*>(q->doorbells.get());
    out->sq = {q->send.get(), q->blocks, kBlock};
    out->rq = {q->receive.get(), q->entries, q->stride};
    out->bf = {q->uar.get() + kBlueFlameAt, kBlueFlameBytes};
    start_thread();
    return 0;
}

void Engine::forget(const Qp& qp) {
    std::lock_guard locked(mutex_);
    std::erase_if(pairs_, [&](const auto& q) { return q->qp == &qp; });
}

void Engine::forget(const Cq& cq) {
    std::lock_guard locked(mutex_);
    std::erase_if(queues_, [&](const auto& q) { return q->cq == &cq; });
}

// As rdma-core's driver does: both counters begin again, and so do the doorbell records. Completions stay.
void Engine::reset(const Qp& qp) {
    std::lock_guard locked(mutex_);
    shared(qp, c_).state.store(
        IBV_QPS_RESET);  // here, so that no look is between the old state and the new counters
    QueuePair* const q = find(qp);
    if (!q) return;
    q->sent = q->received = q->rung = 0;
    q->failed = false;
    q->qp->receives_directly = false;
    std::memset(q->doorbells.get(), 0, 8);
    std::memset(q->uar.get(), 0, kPage);
}

unsigned Engine::kick() {
    std::lock_guard locked(mutex_);
    unsigned done = 0;
    for (auto& q : pairs_) done += work(*q);
    for (auto& cq : queues_) done += hear(*cq);
    return done;
}

unsigned Engine::work(QueuePair& q) {
    const bool had_failed = q.failed;
    const ibv_qp_state state = shared(*q.qp, c_).state.load(std::memory_order_acquire);
    if (state == IBV_QPS_RESET) return 0;
    if (state == IBV_QPS_ERR) q.failed = true;  // somebody else's doing
    unsigned done = hear(q);
    if (!q.failed && state == IBV_QPS_RTS) done += send(q);
    if (!q.failed && state >= IBV_QPS_RTR) done += receive(q);
    if (!q.failed) return done;
    if (!had_failed) fail_qp(c_, *c_.own, q.qp->index);
    flush(q);
    return done;
}

// The send queue's doorbell.
unsigned Engine::hear(QueuePair& q) {
    unsigned heard = 0;
    for (const uint32_t at : {kBlueFlameAt, kBlueFlameAt + kBlueFlameBytes}) {
        const uint64_t written = read_register(q.uar.get() + at);
        if (written == 0) continue;
        heard++;
        uint8_t words[8];
        std::memcpy(words, &written, sizeof words);
        const auto index = uint16_t(load_be32(words) >> 8);
        const auto posted = uint16_t(read_record(q.doorbells.get() + 4 * MLX5_SND_DBR));
        q.rung = posted;
        if (!c_.device->config.strict) continue;
        const bool is_new = uint16_t(index - q.sent) < uint16_t(posted - q.sent);
        const uint8_t* const there = q.send.get() + size_t(index & (q.blocks - 1)) * kBlock;
        if (uint16_t(posted - index - 1) >= q.blocks)
            fail(q, "the UAR page was written for an entry that the doorbell record does not cover",
                 entry_at(q, index));
        else if (is_new && std::memcmp(words, there, sizeof words) != 0)
            fail(q, "what was written to the UAR page is not what is in the queue",
                 entry_at(q, index));
        else if (c_.device->config.kicked && posted == q.sent)
            fail(q, "the UAR page was written, but the doorbell record has nothing new",
                 entry_at(q, index));
    }
    return heard;
}

SendRules Engine::rules_of(const QueuePair& q) const {
    const DeviceConfig& d = c_.device->config;
    return {number_of(c_, *q.qp), d.mtu + 18, d.max_tso, d.tx_checksum,
            d.strict ? Check::strict : Check::fast};
}

unsigned Engine::send(QueuePair& q) {
    QpShared& s = shared(*q.qp, c_);
    const SendRules rules = rules_of(q);
    const ByteView queue(q.send.get(), size_t(q.blocks) * kBlock);
    unsigned done = 0;
    SharedLocked locked(s.send_lock);
    while (q.sent != q.rung && !q.failed) {
        SendRequest request;
        const uint16_t at = q.sent;
        const Complaint wrong = read_send(queue, at, q.rung, rules, &request);
        uint8_t syndrome = wrong.syndrome;
        if (!wrong) {
            const ibv_wc_status fault = injected(s.fail_send);
            syndrome = syndrome_of(fault != IBV_WC_SUCCESS ? fault : send_one(q, request));
            if (syndrome != 0 && fault == IBV_WC_SUCCESS)
                fail(q, meaning_of(syndrome), entry_at(q, at));
        } else {
            fail(q, wrong.what, entry_at(q, at));
        }
        q.failed = q.failed || syndrome != 0;
        q.sent = uint16_t(at + request.blocks);
        complete_send(q, request, at, syndrome);
        done++;
    }
    return done;
}

ibv_wc_status Engine::send_one(QueuePair& q, const SendRequest& request) {
    if (request.opcode == MLX5_OPCODE_NOP) return IBV_WC_SUCCESS;
    if (request.headers > q.qp->max_tso_header) return IBV_WC_LOC_QP_OP_ERR;
    iovec parts[kMostSegments];
    RawFrame frame;
    frame.parts = parts;
    frame.checksum = request.checksum;
    frame.mss = request.mss;
    for (uint32_t i = 0; i < request.pieces_count; i++) {
        const SendRequest::Piece& piece = request.pieces[i];
        const uint8_t* const inlined = request.wqe + (piece.inlined ? piece.at : 0);
        if (i == 0 && request.headers != 0) {
            frame.tso_headers = {inlined, piece.length};
            continue;
        }
        uint64_t at = uint64_t(inlined);
        if (!piece.inlined) {
            const auto place =
                translate(c_.station(), piece.key, shared(*q.qp, c_).pd, piece.at, piece.length, 0);
            if (!place) return IBV_WC_LOC_PROT_ERR;
            at = *place;
        }
        parts[frame.count++] = {reinterpret_cast<void*>(at), piece.length};
        frame.bytes += piece.length;
    }
    return transmit(c_, *q.qp, frame);
}

unsigned Engine::receive(QueuePair& q) {
    const auto posted = uint16_t(read_record(q.doorbells.get() + 4 * MLX5_RCV_DBR));
    if (posted != q.received) q.qp->receives_directly.store(true, std::memory_order_relaxed);
    if (uint16_t(posted - q.received) > q.entries) {
        fail(q, "the doorbell record is beyond the receive queue", {});
        return 1;
    }
    unsigned done = 0;
    QpShared& s = shared(*q.qp, c_);
    SharedLocked locked(recv_queue_of(c_.station(), s).lock);
    WaitingFrames frames(c_, s);
    while (q.received != posted && !q.failed) {
        const FrameSlot* const slot = frames.first();
        if (!slot) break;
        ReceiveRequest request;
        const uint8_t* const entry =
            q.receive.get() + size_t(q.received & (q.entries - 1)) * q.stride;
        const Complaint wrong = read_receive(
            {entry, q.stride}, c_.device->config.strict ? Check::strict : Check::fast, &request);
        uint8_t syndrome = wrong.syndrome;
        if (wrong) fail(q, wrong.what, describe_receive({entry, q.stride}));
        if (!wrong) syndrome = syndrome_of(injected(s.fail_recv));
        if (syndrome == 0) {
            syndrome = store(q, request, *slot);
            if (syndrome != 0) fail(q, meaning_of(syndrome), describe_receive({entry, q.stride}));
        }
        q.failed = q.failed || syndrome != 0;
        complete_receive(q, slot, syndrome);
        frames.take();
        done++;
    }
    return done;
}

uint8_t Engine::store(QueuePair& q, const ReceiveRequest& request, const FrameSlot& slot) {
    uint32_t done = 0;
    for (uint32_t i = 0; i < request.pieces_count && done < slot.length; i++) {
        const SendRequest::Piece& piece = request.pieces[i];
        const uint32_t n = std::min(piece.length, slot.length - done);
        const auto to = translate(c_.station(), piece.key, shared(*q.qp, c_).pd, piece.at, n,
                                  IBV_ACCESS_LOCAL_WRITE);
        if (!to) return MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
        std::memcpy(reinterpret_cast<void*>(*to), slot.bytes + done, n);
        done += n;
    }
    return done == slot.length ? 0 : MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
}

// Says what is wrong, with the entry; the program is to be mended.
void Engine::fail(QueuePair& q, const char* what, const std::string& entry) {
    q.failed = true;
    std::fprintf(stderr, "softhca: %s: queue pair 0x%x: %s; send queue at %u, rung to %u:\n%s",
                 c_.device->config.name.c_str(), number_of(c_, *q.qp), what, unsigned(q.sent),
                 unsigned(q.rung), entry.c_str());
}

std::string Engine::entry_at(const QueuePair& q, uint16_t at) const {
    return describe_send({q.send.get(), size_t(q.blocks) * kBlock}, at);
}

void Engine::flush(QueuePair& q) {
    SendRules rules = rules_of(q);
    rules.check = Check::fast;
    while (q.sent != q.rung) {
        SendRequest request;
        const uint16_t at = q.sent;
        const Complaint wrong =
            read_send({q.send.get(), size_t(q.blocks) * kBlock}, at, q.rung, rules, &request);
        // Where the next begins is not known then.
        q.sent = wrong ? q.rung : uint16_t(at + request.blocks);
        complete_send(q, request, at, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    }
    const auto posted = uint16_t(read_record(q.doorbells.get() + 4 * MLX5_RCV_DBR));
    const auto waiting = std::min<uint32_t>(uint16_t(posted - q.received), q.entries);
    for (uint32_t i = 0; i < waiting; i++)
        complete_receive(q, nullptr, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    q.received = posted;
}

Engine* engine_of(ibv_context* context) { return context_of(context).engine.get(); }

}  // namespace softhca::mlx5
