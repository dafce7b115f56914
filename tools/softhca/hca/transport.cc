#include "softhca/hca/transport.h"

#include <algorithm>
#include <cstring>

#include "softhca/hca/grh.h"
#include "softhca/hca/memory.h"
#include "softhca/hca/queues.h"

namespace softhca {
namespace {

constexpr uint32_t kMaxSges = 32;

enum class Outcome { done, wait_receive, wait_peer, failed };

// The other end of a request.
struct Peer {
    StationMap* station = nullptr;
    QpShared* qp = nullptr;
    uint32_t index = 0;
};

// One request while it is carried out.
struct Request {
    Context& by;
    StationMap& from;
    QpShared& qp;
    const SendWqe& wqe;
    uint32_t qp_num;
    ibv_wc_status status = IBV_WC_SUCCESS;  // when failed
    bool peer_failed = false;               // the peer's QP goes to ERR too
    ibv_event_type peer_event = IBV_EVENT_QP_REQ_ERR;
    iovec local[kMaxSges] = {};
    uint32_t local_count = 0;
    uint64_t bytes = 0;
    uint32_t local_pid = 0;

    Outcome fail(ibv_wc_status why, bool peer_too = false) {
        status = why;
        peer_failed = peer_too;
        return Outcome::failed;
    }
};

bool is_there(const Station& s, const ibv_gid& gid) {
    const uint32_t count = s.gid_count.load(std::memory_order_acquire);
    for (uint32_t i = 0; i < count; i++)
        if (!std::memcmp(&s.gids[i], &gid, sizeof(gid))) return true;
    return false;
}

bool takes_packets(const QpShared& qp) {
    const ibv_qp_state s = qp.state.load(std::memory_order_acquire);
    return s == IBV_QPS_RTR || s == IBV_QPS_RTS || s == IBV_QPS_SQD || s == IBV_QPS_SQE;
}

Peer find_peer(Context& by, uint32_t qpn, const ibv_gid& gid) {
    Peer p;
    p.index = qpn & ((1u << kQpBits) - 1);
    StationMap* station = by.wire->station(qpn >> kQpBits);
    if (!station || p.index >= kMaxQps || !is_there(station->station(), gid)) return p;
    if (!(*station)->port_up.load(std::memory_order_relaxed)) return p;
    p.station = station;
    p.qp = &(*station)->qps[p.index];
    return p;
}

// The request's own memory, as iovecs; false: status is set.
bool gather(Request& r, uint32_t access) {
    if (r.wqe.flags & IBV_SEND_INLINE) {
        r.local[0] = {const_cast<SendWqe*>(&r.wqe) + 1, r.wqe.inline_len};
        r.local_count = 1;
        r.bytes = r.wqe.inline_len;
        r.local_pid = own_pid();  // it is in the shared file
        return true;
    }
    r.local_pid = r.from->pid;
    r.local_count = r.wqe.sges;
    return translate_list(r.from.station(), r.qp.pd, reinterpret_cast<const ibv_sge*>(&r.wqe + 1),
                          r.wqe.sges, access, r.local, &r.bytes);
}

// Takes a receive request of the peer, false when there is none. The list is copied out: its slot is free again.
bool take_receive(Context& by, StationMap& station, QpShared& qp, RecvWqe* head, ibv_sge* list) {
    RecvQueue& q = recv_queue_of(station.station(), qp);
    uint32_t left;
    {
        SharedLocked locked(q.lock);
        const uint32_t at = q.head.load(std::memory_order_relaxed);
        const uint32_t tail = q.tail.load(std::memory_order_acquire);
        if (at == tail) return false;
        const RecvWqe* wqe = recv_wqe(station, q, at);
        head->wr_id = wqe->wr_id;
        head->sges = std::min(wqe->sges, kMaxSges);
        std::memcpy(list, wqe->sge, head->sges * sizeof(ibv_sge));
        q.head.store(at + 1, std::memory_order_release);
        left = tail - at - 1;
        if (q.limit && left < q.limit)
            q.limit = 0;
        else
            left = UINT32_MAX;
    }
    if (left != UINT32_MAX) push_async(by, station->index, IBV_EVENT_SRQ_LIMIT_REACHED, q.cookie);
    return true;
}

Cqe receive_completion(const Request& r, const Peer& peer, uint64_t wr_id) {
    Cqe e{};
    e.wr_id = wr_id;
    e.opcode = IBV_WC_RECV;
    e.byte_len = uint32_t(r.bytes);
    e.qp_num = qp_number((*peer.station)->index, peer.index);
    e.src_qp = r.qp_num;
    e.sl = r.qp.sl;
    if (r.wqe.opcode == IBV_WR_SEND_WITH_IMM || r.wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        e.wc_flags |= IBV_WC_WITH_IMM;
        e.imm = r.wqe.imm;
    } else if (r.wqe.opcode == IBV_WR_SEND_WITH_INV) {
        e.wc_flags |= IBV_WC_WITH_INV;
        e.imm = r.wqe.imm;
    }
    return e;
}

// Puts `prefix` and the request's data into a receive request of the peer. In the error cases of the peer's side the peer
// gets its completion here.
Outcome deliver(Request& r, Peer& peer, ByteView prefix) {
    RecvWqe head;
    ibv_sge list[kMaxSges];
    if (!take_receive(r.by, *peer.station, *peer.qp, &head, list)) return Outcome::wait_receive;
    Cqe e = receive_completion(r, peer, head.wr_id);
    e.byte_len += uint32_t(prefix.size());
    if (!prefix.empty()) e.wc_flags |= IBV_WC_GRH;
    iovec to[kMaxSges], from[kMaxSges + 1];
    uint64_t room = 0;
    from[0] = {const_cast<uint8_t*>(prefix.data()), prefix.size()};
    std::copy_n(r.local, r.local_count, from + 1);
    if (!translate_list(peer.station->station(), peer.qp->pd, list, head.sges,
                        IBV_ACCESS_LOCAL_WRITE, to, &room)) {
        e.status = IBV_WC_LOC_PROT_ERR;
        r.fail(IBV_WC_REM_OP_ERR, true);
    } else if (room < e.byte_len) {
        e.status = IBV_WC_LOC_LEN_ERR;
        r.fail(IBV_WC_REM_INV_REQ_ERR, true);
    } else {
        // The prefix is this process's memory, so a mixed copy goes in two steps.
        const bool copied = prefix.empty() ? copy_between((*peer.station)->pid, to, head.sges,
                                                          r.local_pid, from + 1, r.local_count)
                                           : copy_prefixed((*peer.station)->pid, to, head.sges,
                                                           r.local_pid, from, r.local_count + 1);
        if (!copied) {
            e.status = IBV_WC_LOC_PROT_ERR;
            r.fail(IBV_WC_REM_OP_ERR, true);
        }
    }
    push_completion(r.by, *peer.station, peer.qp->recv_cq, e, r.wqe.flags & IBV_SEND_SOLICITED);
    return e.status == IBV_WC_SUCCESS ? Outcome::done : Outcome::failed;
}

// The place in the peer's memory that the request names; nothing and status set when the peer refuses.
std::optional<uint64_t> remote_place(Request& r, Peer& peer, uint64_t length, uint32_t access) {
    std::optional<uint64_t> at;
    if (peer.qp->access & access)
        at = translate(peer.station->station(), r.wqe.rkey, peer.qp->pd, r.wqe.remote_addr, length,
                       access);
    if (!at) {
        r.fail(IBV_WC_REM_ACCESS_ERR, true);
        r.peer_event = IBV_EVENT_QP_ACCESS_ERR;
    }
    return at;
}

Outcome copy_failed(Request& r, Peer& peer) {
    return r.fail(r.by.wire->is_alive((*peer.station)->index) ? IBV_WC_LOC_PROT_ERR
                                                              : IBV_WC_RETRY_EXC_ERR);
}

Outcome rdma_write(Request& r, Peer& peer) {
    if (!gather(r, 0)) return r.fail(IBV_WC_LOC_PROT_ERR);
    const bool immediate = r.wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (r.bytes) {
        const auto at = remote_place(r, peer, r.bytes, IBV_ACCESS_REMOTE_WRITE);
        if (!at) return Outcome::failed;
        // With immediate data and no receive request yet the data is written now and again later, as a retry would.
        const iovec to = {reinterpret_cast<void*>(*at), r.bytes};
        if (!copy_between((*peer.station)->pid, &to, 1, r.local_pid, r.local, r.local_count))
            return copy_failed(r, peer);
    }
    if (!immediate) return Outcome::done;
    RecvWqe head;
    ibv_sge list[kMaxSges];
    if (!take_receive(r.by, *peer.station, *peer.qp, &head, list)) return Outcome::wait_receive;
    Cqe e = receive_completion(r, peer, head.wr_id);
    e.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    push_completion(r.by, *peer.station, peer.qp->recv_cq, e, r.wqe.flags & IBV_SEND_SOLICITED);
    return Outcome::done;
}

Outcome rdma_read(Request& r, Peer& peer) {
    if (!gather(r, IBV_ACCESS_LOCAL_WRITE)) return r.fail(IBV_WC_LOC_PROT_ERR);
    if (!r.bytes) return Outcome::done;
    const auto at = remote_place(r, peer, r.bytes, IBV_ACCESS_REMOTE_READ);
    if (!at) return Outcome::failed;
    const iovec from = {reinterpret_cast<void*>(*at), r.bytes};
    if (!copy_between(r.local_pid, r.local, r.local_count, (*peer.station)->pid, &from, 1))
        return copy_failed(r, peer);
    return Outcome::done;
}

// Atomic among RDMA atomics only (IBV_ATOMIC_HCA): the peer's processor does not take part.
Outcome atomic(Request& r, Peer& peer) {
    if (!gather(r, IBV_ACCESS_LOCAL_WRITE)) return r.fail(IBV_WC_LOC_PROT_ERR);
    if (r.bytes != 8) return r.fail(IBV_WC_LOC_LEN_ERR);
    const auto at = remote_place(r, peer, 8, IBV_ACCESS_REMOTE_ATOMIC);
    if (!at) return Outcome::failed;
    if (*at % 8) return r.fail(IBV_WC_REM_INV_REQ_ERR, true);
    uint64_t before = 0, after = 0;
    const iovec word = {reinterpret_cast<void*>(*at), 8};
    iovec here = {&before, 8};
    const uint32_t pid = (*peer.station)->pid;
    {
        // The executor is one of the two ends; when it is not the peer, its own stack is the other end of both copies.
        SharedLocked locked((*peer.station)->atomics);
        if (!copy_between(own_pid(), &here, 1, pid, &word, 1)) return copy_failed(r, peer);
        after = r.wqe.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? before + r.wqe.compare_add
                : before == r.wqe.compare_add               ? r.wqe.swap
                                                            : before;
        here.iov_base = &after;
        if (!copy_between(pid, &word, 1, own_pid(), &here, 1)) return copy_failed(r, peer);
    }
    here.iov_base = &before;
    if (!copy_between(r.local_pid, r.local, r.local_count, own_pid(), &here, 1))
        return copy_failed(r, peer);
    return Outcome::done;
}

// UD: to one QP. What cannot be delivered is lost, as on the wire.
void deliver_datagram(Request& r, uint32_t qpn_index, StationMap& station) {
    QpShared& qp = station->qps[qpn_index];
    if (qp.use != QpUse::ud || !takes_packets(qp) || qp.qkey != r.wqe.remote_qkey) return;
    Peer peer = {&station, &qp, qpn_index};
    uint8_t grh[40];
    const ibv_gid& sgid = r.from->gids[r.wqe.sgid_index % kMaxGids];
    write_grh(sgid, r.wqe.dgid, uint32_t(r.bytes), grh);
    deliver(r, peer, ByteView(grh, sizeof(grh)));
    if (r.peer_failed) fail_qp(r.by, station, qpn_index);
    r.peer_failed = false;
}

Outcome send_datagram(Request& r) {
    if (!gather(r, 0)) return r.fail(IBV_WC_LOC_PROT_ERR);
    if (r.bytes > 128u << r.from->mtu) return r.fail(IBV_WC_LOC_LEN_ERR);
    if (r.wqe.dgid.raw[0] != 0xff) {
        Peer peer = find_peer(r.by, r.wqe.remote_qpn, r.wqe.dgid);
        if (peer.qp) deliver_datagram(r, peer.index, *peer.station);
        return Outcome::done;
    }
    for (uint32_t s = 0; s < kMaxStations; s++) {
        StationMap* station = r.by.wire->station(s);
        for (uint32_t i = kFirstQp; station && i < kMaxQps; i++) {
            QpShared& qp = (*station)->qps[i];
            const uint32_t groups =
                qp.use == QpUse::ud ? qp.group_count.load(std::memory_order_acquire) : 0;
            for (uint32_t g = 0; g < groups; g++)
                if (!std::memcmp(&qp.groups[g], &r.wqe.dgid, sizeof(ibv_gid)) &&
                    !(&qp == &r.qp && qp.block_multicast_loop))
                    deliver_datagram(r, i, *station);
        }
    }
    return Outcome::done;
}

Outcome run_connected(Request& r, Peer& peer) {
    switch (r.wqe.opcode) {
        case IBV_WR_SEND:
        case IBV_WR_SEND_WITH_IMM:
            return gather(r, 0) ? deliver(r, peer, {}) : r.fail(IBV_WC_LOC_PROT_ERR);
        case IBV_WR_RDMA_WRITE:
        case IBV_WR_RDMA_WRITE_WITH_IMM:
            return rdma_write(r, peer);
        case IBV_WR_RDMA_READ:
            return rdma_read(r, peer);
        default:
            return atomic(r, peer);
    }
}

Outcome run(Request& r, Peer* peer) {
    if (!r.from->port_up.load(std::memory_order_relaxed)) return Outcome::wait_peer;
    if (r.qp.use == QpUse::ud) return send_datagram(r);
    *peer = find_peer(r.by, r.qp.dest_qpn, r.qp.dgid);
    const bool ready = peer->qp && peer->qp->use == r.qp.use && takes_packets(*peer->qp) &&
                       peer->qp->dest_qpn == r.qp_num;
    if (r.qp.use == QpUse::rc) return ready ? run_connected(r, *peer) : Outcome::wait_peer;
    // UC: what does not arrive is lost; what the requester did wrong it is told.
    const Outcome o = ready ? run_connected(r, *peer) : Outcome::done;
    const bool own_fault =
        o == Outcome::failed && (r.status == IBV_WC_LOC_PROT_ERR || r.status == IBV_WC_LOC_LEN_ERR);
    return own_fault ? o : Outcome::done;
}

const ibv_wc_opcode kCompletionOf[] = {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND,
                                       IBV_WC_SEND,       IBV_WC_RDMA_READ,  IBV_WC_COMP_SWAP,
                                       IBV_WC_FETCH_ADD};

void complete(Context& by, StationMap& from, QpShared& qp, uint32_t qp_num, const SendWqe& wqe,
              uint32_t position, ibv_wc_status status, uint64_t bytes) {
    if (status == IBV_WC_SUCCESS && !qp.signal_all && !(wqe.flags & IBV_SEND_SIGNALED)) return;
    Cqe e{};
    e.wr_id = wqe.wr_id;
    e.status = status;
    e.opcode = wqe.opcode < std::size(kCompletionOf) ? kCompletionOf[wqe.opcode] : IBV_WC_SEND;
    e.byte_len = uint32_t(bytes);
    e.qp_num = qp_num;
    e.is_send = 1;
    e.wqe = position;
    push_completion(by, from, qp.send_cq, e, false);
}

// How long a request may wait for its peer before it fails; 0: for ever.
uint64_t patience(const QpShared& qp, const Peer& peer, Outcome why) {
    // InfiniBand Architecture volume 1, table "Encoding for RNR NAK Timer Field", microseconds.
    static const uint32_t kRnrMicroseconds[32] = {
        655360, 10,    20,    30,    40,    60,     80,     120,    160,    240,   320,
        480,    640,   960,   1280,  1920,  2560,   3840,   5120,   7680,   10240, 15360,
        20480,  30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};
    if (why == Outcome::wait_peer) return qp.timeout_ns;
    if (qp.rnr_retry >= 7) return 0;
    return uint64_t(qp.rnr_retry + 1u) * kRnrMicroseconds[peer.qp->rnr_timer & 31] * 1000;
}

// Puts the QP on the list of those that the peer's station tells of news; when the list is full the owner's polling is left.
void wait_at(StationMap& station, uint32_t qp_num) {
    for (auto& w : station->waiters)
        if (w.load(std::memory_order_relaxed) == qp_num) return;
    for (auto& w : station->waiters) {
        uint32_t none = 0;
        if (!w.compare_exchange_strong(none, qp_num)) continue;
        station->waiter_count.fetch_add(1);
        return;
    }
}

// One request at the front. True: go on with the next.
bool step(Context& by, StationMap& from, uint32_t index, Peer* failed_peer, ibv_event_type* event) {
    QpShared& qp = from->qps[index];
    const uint32_t at = qp.executed.load(std::memory_order_relaxed);
    const SendWqe& wqe = *send_wqe(from, qp, at);
    const uint32_t qp_num = qp_number(from->index, index);
    Peer peer;
    Request r{by, from, qp, wqe, qp_num};
    Outcome o = run(r, &peer);
    if (o == Outcome::wait_receive || o == Outcome::wait_peer) {
        by.waiting = true;
        if (peer.station) {
            wait_at(*peer.station, qp_num);  // then look again: the news may have come in between
            o = run(r, &peer);
        }
    }
    if (o == Outcome::wait_receive || o == Outcome::wait_peer) {
        const uint64_t now = clock_ns(), limit = patience(qp, peer, o);
        if (!qp.waiting_since) qp.waiting_since = now;
        if (!limit || now - qp.waiting_since < limit) return false;
        r.fail(o == Outcome::wait_peer ? IBV_WC_RETRY_EXC_ERR : IBV_WC_RNR_RETRY_EXC_ERR);
        o = Outcome::failed;
    }
    qp.waiting_since = 0;
    qp.executed.store(at + 1, std::memory_order_release);
    if (o == Outcome::failed) qp.state = IBV_QPS_ERR;
    complete(by, from, qp, qp_num, wqe, at + 1, o == Outcome::done ? IBV_WC_SUCCESS : r.status,
             r.bytes);
    if (o == Outcome::done) return true;
    if (r.peer_failed) {
        *failed_peer = peer;
        *event = r.peer_event;
    }
    return false;
}

}  // namespace

void execute(Context& by, StationMap& from, uint32_t index) {
    QpShared& qp = from->qps[index];
    Peer failed_peer;
    ibv_event_type event = IBV_EVENT_QP_REQ_ERR;
    {
        SharedLocked locked(qp.send_lock);
        while (qp.state.load(std::memory_order_acquire) == IBV_QPS_RTS &&
               qp.executed.load(std::memory_order_relaxed) !=
                   qp.posted.load(std::memory_order_acquire) &&
               step(by, from, index, &failed_peer, &event)) {
        }
    }
    if (qp.state.load(std::memory_order_acquire) == IBV_QPS_ERR) flush(by, from, index);
    if (failed_peer.qp) {  // after our lock: the peer may be doing the same to us
        push_async(by, (*failed_peer.station)->index, event, failed_peer.qp->cookie);
        fail_qp(by, *failed_peer.station, failed_peer.index);
    }
}

void retry_waiting(Context& c) {
    c.waiting = false;  // who still waits says so again
    for (uint32_t i = kFirstQp; i < kMaxQps; i++) {
        QpShared& qp = c.station().qps[i];
        if (qp.use != QpUse::free && qp.use != QpUse::raw && qp.state == IBV_QPS_RTS &&
            qp.executed.load(std::memory_order_relaxed) !=
                qp.posted.load(std::memory_order_relaxed))
            execute(c, *c.own, i);
    }
}

void serve_waiters(Context& c) {
    Station& s = c.station();
    if (s.waiter_count.load() == 0) return;
    for (auto& w : s.waiters) {
        const uint32_t qp_num = w.exchange(0);
        if (!qp_num) continue;
        s.waiter_count.fetch_sub(1);
        StationMap* from = c.wire->station(qp_num >> kQpBits);
        if (from) execute(c, *from, qp_num & ((1u << kQpBits) - 1));
    }
}

void flush(Context& by, StationMap& station, uint32_t index) {
    QpShared& qp = station->qps[index];
    const uint32_t qp_num = qp_number(station->index, index);
    {
        SharedLocked locked(qp.send_lock);
        for (uint32_t at = qp.executed; at != qp.posted; qp.executed = ++at)
            complete(by, station, qp, qp_num, *send_wqe(station, qp, at), at + 1,
                     IBV_WC_WR_FLUSH_ERR, 0);
    }
    if (qp.srq) return;
    SharedLocked locked(qp.recv.lock);
    for (uint32_t at = qp.recv.head; at != qp.recv.tail; qp.recv.head = ++at) {
        Cqe e{};
        e.wr_id = recv_wqe(station, qp.recv, at)->wr_id;
        e.status = IBV_WC_WR_FLUSH_ERR;
        e.opcode = IBV_WC_RECV;
        e.qp_num = qp_num;
        push_completion(by, station, qp.recv_cq, e, false);
    }
}

void fail_qp(Context& by, StationMap& station, uint32_t index) {
    station->qps[index].state = IBV_QPS_ERR;
    flush(by, station, index);
}

}  // namespace softhca
