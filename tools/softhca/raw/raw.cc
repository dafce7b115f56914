#include "softhca/raw/raw.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "softhca/hca/memory.h"
#include "softhca/hca/objects.h"
#include "softhca/hca/queues.h"
#include "softhca/hca/transport.h"
#include "softhca/raw/fields.h"
#include "softhca/raw/offload.h"

namespace softhca {
namespace {

constexpr uint32_t kHeadBytes = 128, kMaxParts = 40;

// A frame as a list of pieces; the first `head_len` bytes lie together.
struct Frame {
    iovec parts[kMaxParts];
    uint32_t count = 0;
    uint64_t bytes = 0;
    uint8_t copied_head[kHeadBytes];
    ByteView head;

    // Makes the head one piece, copying when it is spread over several or has to be written to.
    void gather_head(bool writable) {
        const uint32_t want = uint32_t(std::min<uint64_t>(bytes, kHeadBytes));
        if (!writable && count && parts[0].iov_len >= want) {
            head = {static_cast<const uint8_t*>(parts[0].iov_base), want};
            return;
        }
        uint32_t done = 0, used = 0;
        for (; used < count && done < want; used++) {
            const size_t n = std::min<size_t>(parts[used].iov_len, want - done);
            std::memcpy(copied_head + done, parts[used].iov_base, n);
            done += uint32_t(n);
            if (n == parts[used].iov_len) continue;
            parts[used].iov_base = static_cast<char*>(parts[used].iov_base) + n;
            parts[used].iov_len -= n;
            break;
        }
        std::memmove(parts + 1, parts + used, (count - used) * sizeof(iovec));
        parts[0] = {copied_head, done};
        count = count - used + 1;
        head = {copied_head, done};
    }
};

class RawSender {
  public:
    RawSender(Context& c, Qp& qp) : c_(c), qp_(qp), shared_(shared(qp, c)) {}

    int post(ibv_send_wr* wr, ibv_send_wr** bad) {
        const int error = post_locked(wr, bad);
        if (failed_) flush(c_, *c_.own, qp_.index);
        return error;
    }

  private:
    int post_locked(ibv_send_wr* wr, ibv_send_wr** bad) {
        SharedLocked locked(shared_.send_lock);
        for (; wr; wr = wr->next) {
            const int error = one(*wr);
            if (!error) continue;
            *bad = wr;
            return error;
        }
        return 0;
    }

    int one(const ibv_send_wr& wr) {
        const ibv_qp_state state = shared_.state.load(std::memory_order_acquire);
        if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) return EINVAL;
        const uint32_t at = shared_.posted.load(std::memory_order_relaxed);
        if (at - shared_.retired.load(std::memory_order_acquire) >= shared_.send_capacity)
            return ENOMEM;
        const bool tso = wr.opcode == IBV_WR_TSO;
        if ((!tso && wr.opcode != IBV_WR_SEND) || wr.num_sge < 0 ||
            uint32_t(wr.num_sge) > shared_.send_sge)
            return EINVAL;
        if (tso && (wr.tso.hdr_sz > qp_.max_tso_header || wr.tso.mss == 0)) return EINVAL;
        Frame f;
        ibv_wc_status status = IBV_WC_WR_FLUSH_ERR;
        if (wr.send_flags & IBV_SEND_INLINE) {
            for (int i = 0; i < wr.num_sge; i++) {
                f.parts[f.count++] = {reinterpret_cast<void*>(wr.sg_list[i].addr),
                                      wr.sg_list[i].length};
                f.bytes += wr.sg_list[i].length;
            }
            if (f.bytes > shared_.send_inline) return EINVAL;
        }
        shared_.posted.store(at + 1, std::memory_order_relaxed);
        shared_.executed.store(at + 1, std::memory_order_relaxed);
        if (state == IBV_QPS_RTS) {
            status = injected(shared_.fail_send);
            if (status == IBV_WC_SUCCESS) status = carry_out(wr, tso, f);
        }
        if (status == IBV_WC_SUCCESS && !shared_.signal_all && !(wr.send_flags & IBV_SEND_SIGNALED))
            return 0;
        if (status != IBV_WC_SUCCESS && state == IBV_QPS_RTS) {
            shared_.state = IBV_QPS_ERR;
            failed_ = true;
        }
        Cqe e{};
        e.wr_id = wr.wr_id;
        e.status = status;
        e.opcode = tso ? IBV_WC_TSO : IBV_WC_SEND;
        e.byte_len = uint32_t(f.bytes);
        e.qp_num = qp_number(c_.index, qp_.index);
        e.is_send = 1;
        e.wqe = at + 1;
        push_completion(c_, *c_.own, shared_.send_cq, e, false);
        return 0;
    }

    ibv_wc_status carry_out(const ibv_send_wr& wr, bool tso, Frame& f) {
        if (!(wr.send_flags & IBV_SEND_INLINE)) {
            if (!translate_list(c_.station(), shared_.pd, wr.sg_list, uint32_t(wr.num_sge), 0,
                                f.parts, &f.bytes))
                return IBV_WC_LOC_PROT_ERR;
            f.count = uint32_t(wr.num_sge);
        }
        if (tso)
            return send_segments({static_cast<const uint8_t*>(wr.tso.hdr), size_t(wr.tso.hdr_sz)},
                                 wr.tso.mss, f);
        return send_frame(f, wr.send_flags & IBV_SEND_IP_CSUM);
    }

  public:
    ibv_wc_status send_frame(Frame& f, bool sum) {
        if (f.bytes < 14 || f.bytes > c_.device->config.mtu + 18) return IBV_WC_LOC_LEN_ERR;
        f.gather_head(sum);
        FlowFields fields;
        uint32_t l4;
        read_fields(f.head, &fields, &l4);
        const bool summed = sum && write_checksums(f.copied_head, f.head.size(), fields, l4,
                                                   f.parts + 1, f.count - 1);
        out(f, fields, summed);
        return IBV_WC_SUCCESS;
    }

    ibv_wc_status send_segments(ByteView headers, uint32_t mss, Frame& f) {
        const uint32_t hdr = uint32_t(headers.size());
        if (hdr < 54 || hdr > kHeadBytes || f.bytes + hdr > c_.device->config.max_tso ||
            hdr + mss > c_.device->config.mtu + 18u)
            return IBV_WC_LOC_LEN_ERR;
        FlowFields fields;
        uint32_t l4;
        read_fields(headers, &fields, &l4);
        if (!l4 || fields.protocol != IPPROTO_TCP || l4 + 20 > hdr) return IBV_WC_LOC_QP_OP_ERR;
        uint32_t part = 0, used = 0;
        for (uint64_t done = 0; done < f.bytes;) {
            const uint32_t n = uint32_t(std::min<uint64_t>(mss, f.bytes - done));
            Frame segment;
            std::memcpy(segment.copied_head, headers.data(), hdr);
            segment.parts[segment.count++] = {segment.copied_head, hdr};
            for (uint32_t left = n; left && segment.count < kMaxParts;) {
                const uint32_t take =
                    uint32_t(std::min<size_t>(left, f.parts[part].iov_len - used));
                if (take)
                    segment.parts[segment.count++] = {
                        static_cast<char*>(f.parts[part].iov_base) + used, take};
                left -= take;
                used += take;
                if (used == f.parts[part].iov_len) part++, used = 0;
            }
            segment.bytes = hdr + n;
            make_segment(segment.copied_head, hdr, fields, l4, uint32_t(done), n, mss,
                         done + n == f.bytes);
            const bool summed = write_checksums(segment.copied_head, hdr, fields, l4,
                                                segment.parts + 1, segment.count - 1);
            segment.head = {segment.copied_head, hdr};
            out(segment, fields, summed);
            done += n;
        }
        return IBV_WC_SUCCESS;
    }

  private:
    void out(const Frame& f, const FlowFields& fields, bool summed) {
        if (!c_.station().port_up.load(std::memory_order_relaxed))
            return;  // no carrier: nothing leaves
        const Route& route = qp_.routes.lookup(c_, fields, qp_.index);
        deliver_frame(c_, route, f.parts, f.count, uint32_t(f.bytes), summed);
    }

    Context& c_;
    Qp& qp_;
    QpShared& shared_;
    bool failed_ = false;  // by one of these requests
};

// Copies a frame into a receive request; the status of its completion.
ibv_wc_status store(Context& c, const RecvQueue& q, const RecvWqe& wqe, const FrameSlot& slot) {
    uint32_t done = 0;
    for (uint32_t i = 0; i < wqe.sges && done < slot.length; i++) {
        const uint32_t n = std::min(wqe.sge[i].length, slot.length - done);
        const auto to = translate(c.station(), wqe.sge[i].lkey, q.pd, wqe.sge[i].addr, n,
                                  IBV_ACCESS_LOCAL_WRITE);
        if (!to) return IBV_WC_LOC_PROT_ERR;
        std::memcpy(reinterpret_cast<void*>(*to), slot.bytes + done, n);
        done += n;
    }
    return done == slot.length ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR;
}

// *error: a completion in error, so the others are to be flushed.
unsigned receive_of(Context& c, bool timestamps, Qp& qp, unsigned count, Cqe* out, bool* error) {
    QpShared& s = shared(qp, c);
    if (qp.receives_directly.load(std::memory_order_relaxed)) return 0;
    const FrameRing& ring = *c.own->at<FrameRing>(s.frames);
    if (ring.head.load(std::memory_order_relaxed) == ring.tail.load(std::memory_order_acquire))
        return 0;
    RecvQueue& q = recv_queue_of(c.station(), s);
    SharedLocked locked(q.lock);
    WaitingFrames frames(c, s);
    unsigned n = 0;
    bool failed = s.state.load(std::memory_order_relaxed) == IBV_QPS_ERR;
    if (failed) frames.drop_all();
    while (n < count && !failed) {
        const FrameSlot* const waiting = frames.first();
        if (!waiting) break;
        const FrameSlot& slot = *waiting;
        const uint32_t at = q.head.load(std::memory_order_relaxed);
        if (at == q.tail.load(std::memory_order_acquire))
            break;  // they wait for requests until the ring is full
        const RecvWqe& wqe = *recv_wqe(*c.own, q, at);
        Cqe& e = out[n++];
        e = {};
        e.wr_id = wqe.wr_id;
        e.status = injected(s.fail_recv);
        if (e.status == IBV_WC_SUCCESS) e.status = store(c, q, wqe, slot);
        e.opcode = IBV_WC_RECV;
        e.byte_len = slot.length;
        e.qp_num = qp_number(c.index, qp.index);
        e.flow_tag = slot.tag;
        if (c.device->config.rx_checksum &&
            (slot.checksum_good || checksums_good(ByteView(slot.bytes, slot.length))))
            e.wc_flags |= IBV_WC_IP_CSUM_OK;
        if (timestamps) e.timestamp = clock_ns();
        failed = e.status != IBV_WC_SUCCESS;
        q.head.store(at + 1, std::memory_order_release);
        frames.take();
    }
    *error = failed && s.state != IBV_QPS_ERR;
    if (*error) s.state = IBV_QPS_ERR;
    return n;
}

}  // namespace

ibv_wc_status injected(std::atomic<uint32_t>& fault) {
    if (fault.load(std::memory_order_relaxed) == 0) return IBV_WC_SUCCESS;
    return ibv_wc_status(fault.exchange(0));
}

ibv_wc_status transmit(Context& c, Qp& qp, const RawFrame& frame) {
    Frame f;
    if (frame.count >= kMaxParts) return IBV_WC_LOC_QP_OP_ERR;
    std::copy_n(frame.parts, frame.count, f.parts);
    f.count = frame.count;
    f.bytes = frame.bytes;
    RawSender sender(c, qp);
    return frame.tso_headers.empty() ? sender.send_frame(f, frame.checksum)
                                     : sender.send_segments(frame.tso_headers, frame.mss, f);
}

WaitingFrames::WaitingFrames(const Context& c, const QpShared& qp)
    : ring_(*c.own->at<FrameRing>(qp.frames)),
      head_(ring_.head.load(std::memory_order_relaxed)),
      tail_(ring_.tail.load(std::memory_order_acquire)) {}

WaitingFrames::~WaitingFrames() { ring_.head.store(head_, std::memory_order_release); }

const FrameSlot* WaitingFrames::first() {
    const char* const data = reinterpret_cast<const char*>(&ring_ + 1);
    while (head_ != tail_) {
        const uint64_t at = head_ & (ring_.bytes - 1);
        const auto* const slot = reinterpret_cast<const FrameSlot*>(data + at);
        if (slot->length != FrameSlot::kWrap) return slot;
        head_ += ring_.bytes - at;
    }
    return nullptr;
}

void WaitingFrames::take() {
    if (const FrameSlot* const slot = first())
        head_ += (sizeof(FrameSlot) + slot->length + 63) & ~uint64_t(63);
}

int post_raw(Context& c, Qp& qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    return RawSender(c, qp).post(wr, bad);
}

unsigned receive_frames(Context& c, Cq& cq, unsigned count, Cqe* out) {
    std::lock_guard locked(cq.raw_mutex);
    const bool timestamps = c.station().cqs[cq.index].timestamps;
    unsigned n = 0;
    for (Qp* qp : cq.raw_qps) {
        bool error = false;
        if (n < count) n += receive_of(c, timestamps, *qp, count - n, out + n, &error);
        if (error) flush(c, *c.own, qp->index);
    }
    return n;
}

}  // namespace softhca
