// Text past the segments: between two processes of one host, whose ring has a TextLane.
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "engine/shard.h"
#include "engine/tcp_received.h"
#include "stats/capture.h"

namespace vma {
namespace {

FlowKey key_of(const FlowTuple& tuple) { return {tuple.local, tuple.remote, IPPROTO_TCP}; }

TextHead head_of(const PacketBuf& text) {
    TextHead head;
    std::memcpy(&head, text.data, sizeof head);
    return head;
}

}  // namespace

uint32_t TcpEngine::open_text(TcpConnection& c) {
    if (lane_ == nullptr) return 0;
    c.text_way = lane_->text_way(key_of(c.tuple));
    c.text_tag = lane_->open_text(key_of(c.tuple), &c);
    return c.text_tag;
}

void TcpEngine::close_text(TcpConnection& c) {
    if (lane_ && c.text_tag) lane_->close_text(c.text_tag);
    c.text_way = c.text_to = c.text_tag = 0;
}

size_t TcpEngine::send_text(TcpConnection& c, const iovec* iov, unsigned count, bool last,
                            Instant now) {
    // Whoever looks at frames sees frames.
    if (c.text_to == 0 || c.held || stats::capturing()) return 0;
    uint64_t all = 0;
    for (unsigned i = 0; i < count; i++) all += iov[i].iov_len;
    const auto n = uint32_t(
        std::min<uint64_t>({all, uint64_t{tcp::direct_room(c.tcb)}, TextLane::kMostBytes}));
    if (n == 0) return 0;
    TextHead head{c.text_to, c.tcb.snd.nxt};
    if (last && n == all) head.tag |= TextHead::kPushed;
    if (lane_->send_text(c.text_way, head, iov, count, n) != 0) return 0;
    tcp::sent_directly(c.tcb, n, now);
    counters_.segments_out++;
    return n;
}

void TcpEngine::text_input(Packet text, Instant now) {
    auto* const c = static_cast<TcpConnection*>(lane_->text_owner(text->meta.flow_tag));
    if (c == nullptr) return drops_.add(DropReason::no_endpoint);
    const TextHead head = head_of(*text);
    tcp::SegView seg;
    seg.seq = head.seq;
    seg.payload_offset = sizeof head;
    seg.payload_len = text->len - uint32_t(sizeof head);
    seg.packet = std::move(text);
    counters_.segments_in++;
    c->pushed = (head.tag & TextHead::kPushed) != 0;
    tcp::Actions actions;
    const tcp::Verdict verdict = tcp::direct_text_arrives(c->tcb, seg, now, actions);
    if (verdict.reason != DropReason::none) drops_.add(verdict.reason);
    absorb(*c, actions, now);
}

uint32_t TcpEngine::head_of_text(const PacketBuf& text, std::span<uint8_t, kMaxHead> to) const {
    const auto* const c = static_cast<TcpConnection*>(lane_->text_owner(text.meta.flow_tag));
    if (c == nullptr) return 0;
    const TextHead head = head_of(text);
    tcp::SegmentHead segment;
    segment.seq = head.seq;
    segment.ack = c->tcb.snd.una;
    segment.wnd = uint16_t(c->tcb.snd.wnd >> c->tcb.snd.wscale);
    segment.flags = tcp::kAck | (head.tag & TextHead::kPushed ? tcp::kPsh : 0);
    tcp::SegmentPlan plan;
    plan.payload_len = text.len - uint32_t(sizeof head);
    const FlowTuple reversed{c->tuple.remote, c->tuple.local};
    return uint32_t(build_segment(segment, c->path, reversed, 0, &plan, to.data()).head.size());
}

bool TcpEngine::unread_text(const TcpConnection& c, Seq from, Seq until,
                            std::vector<uint8_t>& out) const {
    return c.text_to != 0 && lane_->unread_text(c.text_way, c.text_to, from, until, out);
}

bool TcpEngine::has_unread_text(const TcpConnection& c) const {
    return c.text_tag != 0 && lane_->has_text(c.text_tag);
}

}  // namespace vma
