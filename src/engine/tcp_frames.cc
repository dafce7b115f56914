// Frames out of segment plans, frames in to whom they are for, and the news both make.
#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/network_monitor.h"
#include "engine/shard.h"
#include "engine/tcp_received.h"
#include "stack/reassembly4.h"
#include "wire/checksum.h"
#include "wire/icmp.h"
#include "wire/tcp4.h"

namespace vma {

TcpSink* TcpEngine::sink_ = nullptr;

namespace {

// An accepted connection is steered by its listener's flow, under which the hook asks the kernel for a connection of its own
// with every segment. One that lives longer gets a flow of its own, which costs a few system calls once.
constexpr uint64_t kOwnFlowAfter = 64;
constexpr Duration kNeighborRetry = Duration::millis(5);
constexpr Duration kRoomRetry = Duration::millis(1);
constexpr unsigned kPlansPerPull = 64;  // a sender must not keep the lease for ever

// An acknowledgement as `t` would send it now, without options.
tcp::SegmentHead plain_head(const tcp::Tcb& t) {
    tcp::SegmentHead head;
    head.seq = t.snd.nxt;
    head.ack = t.rcv.nxt;
    head.wnd = uint16_t(t.rcv.wnd() >> t.rcv.wscale);
    head.flags = tcp::kAck;
    return head;
}

}  // namespace

// ---- out

TxFrame TcpEngine::build_segment(const tcp::SegmentHead& head, const TcpPath& path,
                                 const FlowTuple& tuple, uint16_t ip_id,
                                 const tcp::SegmentPlan* plan, uint8_t* bytes) const {
    const auto options = emit_tcp_options(head.opt, ByteSpan(bytes + kTcp4Head, 40));
    if (!options) return {};
    Tcp4Head h;
    h.from = shard_.mac();
    h.to = path.dst_mac;
    h.src = tuple.local.addr.v4_data();
    h.dst = tuple.remote.addr.v4_data();
    h.tos =
        uint8_t((path.tos & ~3u) | (head.ect ? 2u : 0u));  // ECN is TCP's, not the application's
    h.ttl = path.ttl;
    h.ip_id = ip_id;
    h.src_port = tuple.local.port;
    h.dst_port = tuple.remote.port;
    h.seq = head.seq;
    h.ack = head.ack;
    h.flags = head.flags;
    h.window = head.wnd;
    h.urgent = head.urg;
    h.options = *options;
    h.payload = plan ? plan->payload_len : 0;
    emit_tcp4(h, bytes);

    TxFrame frame;
    frame.head = {bytes, kTcp4Head + *options};
    if (plan) {
        frame.payload = plan->slices;
        frame.payload_count = plan->slice_count;
        frame.payload_len = plan->payload_len;
        frame.gso_size = plan->gso_size;
        frame.gso = plan->gso_size ? Gso::tcp_v4 : Gso::none;
    }
    frame.cwr = (head.flags & tcp::kCwr) != 0;
    if (shard_.caps().tx_checksum) {
        frame.csum_start = kEthernetSize + kIpv4Size;
        frame.csum_offset = kTcpChecksumOffset;
    } else {
        Checksum sum;  // the field has the pseudo header's, which is part of it
        sum.add(ByteView(bytes + kEthernetSize + kIpv4Size, kTcpSize + *options));
        if (plan) sum.add_iovecs(plan->slices, plan->slice_count);
        store_be16(bytes + kEthernetSize + kIpv4Size + kTcpChecksumOffset, sum.finish());
    }
    return frame;
}

// build_segment() belongs into it: a call, and the frame by memory, are fifty instructions.
[[gnu::flatten]] int TcpEngine::send_segment(const tcp::SegmentHead& head, const TcpPath& path,
                                             const FlowTuple& tuple, uint16_t* ip_id,
                                             const tcp::SegmentPlan* plan) {
    uint8_t bytes[kMaxHead];
    const TxFrame frame = build_segment(head, path, tuple, ip_id ? (*ip_id)++ : 0, plan, bytes);
    if (frame.head.empty()) return EINVAL;
    counters_.segments_out++;
    const int refused = shard_.send(frame);
    if (refused) counters_.frames_refused++;
    return refused;
}

uint32_t TcpEngine::header_template(const TcpConnection& c, std::span<uint8_t, kMaxHead> to) const {
    return uint32_t(
        build_segment(plain_head(c.tcb), c.path, c.tuple, 0, nullptr, to.data()).head.size());
}

bool TcpEngine::rehearse(TcpConnection& c, const iovec& text) const {
    const tcp::Tcb& t = c.tcb;
    const uint32_t window = std::min(t.snd.wnd, t.cc.cwnd);
    if (!t.can_send() || tcp::unsent_bytes(t) != 0 || text.iov_len == 0 || !c.path.resolved ||
        text.iov_len > t.snd.mss || t.flight() + text.iov_len > window)
        return false;
    tcp::SegmentPlan plan;
    plan.head = plain_head(t);
    plan.head.flags |= tcp::kPsh;
    plan.slices[0] = text;
    plan.slice_count = 1;
    plan.payload_len = uint32_t(text.iov_len);
    uint8_t bytes[kMaxHead];
    return !build_segment(plan.head, c.path, c.tuple, c.ip_id, &plan, bytes).head.empty();
}

// Answers the sender of a received segment from the tuple it addressed.
void TcpEngine::reply(const tcp::SegmentHead& head, const Received& to, uint8_t ttl, uint8_t tos) {
    TcpPath path;
    path.dst_mac = to.peer_mac;
    path.ttl = ttl;
    path.tos = tos;
    if (head.flags & tcp::kRst) counters_.resets_sent++;
    send_segment(head, path, {to.local, to.remote}, nullptr, nullptr);
}

bool TcpEngine::path_ready(TcpConnection& c, Instant now) {
    TcpPath& path = c.path;
    if (monitor_ == nullptr || !shard_.caps().has_neighbors) return path.resolved;
    const uint64_t generation = monitor_->neighbor_generation();
    if (path.resolved && path.neighbor_generation == generation) return true;
    const Neighbor neighbor = monitor_->neighbor(path.ifindex, path.next_hop);
    path.neighbor_generation = generation;
    if (neighbor.sendable()) {
        path.dst_mac = neighbor.mac;
        path.resolved = true;
        return true;
    }
    if (neighbor.state == NeighborState::failed && c.tcb.state == tcp::State::SYN_SENT) {
        tcp::Actions actions;
        tcp::fail(c.tcb, EHOSTUNREACH, actions);
        absorb(c, actions, now);
        return false;
    }
    monitor_->resolve(path.ifindex, path.next_hop);
    // A connection that knew its neighbour goes on with what it knew: the kernel may only be refreshing the entry.
    if (path.resolved) return true;
    queue_deadline(c, now + kNeighborRetry);
    return false;
}

void TcpEngine::neighbors_changed(Instant now) {
    demux_.for_each([&](TcpTarget& target) {
        if (target.kind == TcpTarget::Kind::connection) {
            auto& c = static_cast<TcpConnection&>(target);
            if (!c.path.resolved) queue_output(c);
        }
    });
    flush(now);
}

void TcpEngine::path_changed(TcpConnection& c, const TcpPath& path, uint32_t mtu, Instant now) {
    if (!(c.path.next_hop == path.next_hop)) c.path = path;
    constexpr uint32_t kHeaders = 40, kLeast = 552;  // Linux's net.ipv4.route.min_pmtu
    tcp::Actions actions;
    const uint32_t mss = std::max(mtu, kLeast) - kHeaders;
    if (mss < c.tcb.cfg.mss && !tcp::path_too_big(c.tcb, c.tcb.snd.una, mtu, kHeaders, actions))
        tcp::path_mss_changed(c.tcb, uint16_t(mss), actions);
    absorb(c, actions, now);
    queue_output(c);
    flush(now);
}

void TcpEngine::queue_output(TcpConnection& c) {
    if (!c.output_hook.linked()) output_.push_back(c);
}

void TcpEngine::pull(TcpConnection& c, Instant now) {
    c.output_hook.unlink();
    if (c.held) return;
    if (tcp::at_rest(c.tcb)) {
        // Only a deadline may have moved.
    } else if (shard_.caps().pushes_back) {
        pull_with_room(c, now);
        const bool over = c.tcb.state == tcp::State::CLOSED && !c.tcb.rst_due;
        if (over && c.owner == nullptr && !c.news_hook.linked()) news_.push_back(c);
    } else if (path_ready(c, now)) {
        tcp::SegmentPlan plan;
        for (unsigned i = 0; i < kPlansPerPull && tcp::next_segment(c.tcb, now, plan); i++) {
            if (plan.head.flags & tcp::kRst) counters_.resets_sent++;
            send_segment(plan.head, c.path, c.tuple, &c.ip_id, &plan);
            if (i + 1 == kPlansPerPull) queue_output(c);
        }
    }
    queue_deadline(c, tcp::deadline(c.tcb));
}

// A segment is made only if the ring will take it, so that a full one is a wait and not a loss. What is read at the other end
// is acknowledged as a rule, and then there is room; the timer is for those that have nothing under way.
void TcpEngine::pull_with_room(TcpConnection& c, Instant now) {
    const FlowKey key{c.tuple.local, c.tuple.remote, IPPROTO_TCP};
    tcp::SegmentPlan plan;
    for (unsigned i = 0; i < kPlansPerPull; i++) {
        if (!shard_.has_room(key)) return queue_deadline(c, now + kRoomRetry);
        if (!tcp::next_segment(c.tcb, now, plan)) return;
        if (plan.head.flags & tcp::kRst) counters_.resets_sent++;
        const int refused = send_segment(plan.head, c.path, c.tuple, &c.ip_id, &plan);
        if (refused == 0 || refused == EAGAIN) continue;
        const bool fin = (plan.head.flags & tcp::kFin) != 0;
        if (plan.payload_len == 0 && !fin) continue;
        // Nobody will ever take it: to the program, as if a dead peer's kernel had answered text. A FIN it would not have.
        tcp::Actions actions;
        tcp::fail(c.tcb,
                  plan.payload_len == 0 ? 0
                  : c.tcb.rcv.fin_done  ? EPIPE
                                        : ECONNRESET,
                  actions);
        return absorb(c, actions, now);
    }
    queue_output(c);
}

void TcpEngine::release_hold(TcpConnection& c, Instant now) {
    c.held = false;
    pull(c, now);
    flush(now);
}

void TcpEngine::leave_ring(TcpConnection& c) {
    c.held = c.leaving = true;
    c.output_hook.unlink();
    // What the other end goes on to send so would be lost if it were read here now.
    if (c.text_tag) lane_->hold_text(c.text_tag, true);
    if (std::exchange(c.steered, false)) unsteer(c.tuple);
}

void TcpEngine::stay_in_ring(TcpConnection& c, Instant now) {
    c.leaving = false;
    if (c.text_tag) lane_->hold_text(c.text_tag, false);
    c.steered = steer(c.tuple, -1).ok();
    release_hold(c, now);
}

void TcpEngine::peer_gone(TcpConnection& c, Instant now) {
    tcp::Actions actions;
    if (!c.leaving) c.held = false;  // nobody will ever say that it may go on
    if (c.tcb.state == tcp::State::CLOSED) return queue_output(c);
    // Text of ours that it never took, or text of its own that never left it: the kernel would have reset for the first and
    // delivered the second.
    const bool cut = !c.pushed || c.tcb.rcv.adv == c.tcb.rcv.nxt || c.tcb.out.bytes != 0;
    if (cut && !c.tcb.rcv.fin_done) {
        tcp::fail(c.tcb, ECONNRESET, actions);
    } else if (!c.tcb.rcv.fin_done) {
        tcp::SegView fin;
        fin.seq = c.tcb.rcv.nxt;
        fin.ack = c.tcb.snd.nxt;
        fin.wnd = UINT16_MAX;
        fin.flags = tcp::kFin | tcp::kAck;
        tcp::segment_arrives(c.tcb, fin, now, actions);
    }
    absorb(c, actions, now);
    queue_output(c);
}

TcpConnection* TcpEngine::find(const FlowTuple& tuple) {
    TcpTarget* const target = demux_.find_exact(tuple);
    return target && target->kind == TcpTarget::Kind::connection
               ? static_cast<TcpConnection*>(target)
               : nullptr;
}

// ---- events

void TcpEngine::absorb(TcpConnection& c, const tcp::Actions& actions, Instant now) {
    if (actions.events & tcp::kFailed) c.error = actions.error;
    c.events |= actions.events & ~uint32_t(tcp::kAckNow);
    if (actions.has_reply) send_segment(actions.reply, c.path, c.tuple, &c.ip_id, nullptr);
    if (actions.events & (tcp::kOutput | tcp::kConnected)) queue_output(c);
    if (actions.events & tcp::kConnected) note_handshake(c, now);
    if (c.events & ~uint32_t(tcp::kOutput)) {
        if (!c.news_hook.linked()) news_.push_back(c);
    }
}

void TcpEngine::tell(TcpConnection& c) {
    const uint32_t events = c.events;
    c.events = 0;
    if (c.owner && sink_) {
        sink_->tcp_events(c, events, c.error);
        return;
    }
    // Without an owner: one that was reset before it was accepted stays in the queue, as in Linux; accept() gives it out with
    // its error.
}

void TcpEngine::flush(Instant now) {
    // Output first: it is what the peer waits for. A pull may queue news and news may queue output.
    while (!output_.empty() || !news_.empty() || !listener_news_.empty()) {
        unsigned round = 0;
        while (TcpConnection* c = output_.pop_front()) {
            pull(*c, now);
            if (++round == 256) break;
        }
        while (TcpConnection* c = news_.pop_front()) {
            const uint32_t events = c->events;
            tell(*c);
            if (c->neighbor && c->tcb.rst_due)
                continue;  // comes again when that is out, see pull()
            if (c->owner == nullptr && c->listener == nullptr) {
                if (c->tcb.state == tcp::State::CLOSED)
                    destroy(*c);
                else if (events & tcp::kTimeWait)
                    become_time_wait(*c, now);
            } else if (c->tcb.state == tcp::State::CLOSED && !c->tcb.rst_due) {
                leave_tuple(*c);
            }
        }
        while (TcpListener* l = listener_news_.pop_front())
            if (sink_ && l->owner) sink_->tcp_acceptable(*l);
        if (round == 256) break;
    }
}

// ---- in

void TcpEngine::input(Packet frame, Instant now) {
    Tcp4View view;
    if (!read_tcp4(frame->view(), view)) [[unlikely]]
        if (!input_unusual(frame, view, now)) return;
    Received r;
    r.local = {IpAddr::v4_bytes(view.ip + 16), load_be16(view.tcp + 2)};
    r.remote = {IpAddr::v4_bytes(view.ip + 12), load_be16(view.tcp)};
    if (!frame->meta.checksum_good) {
        Checksum sum;
        sum.add_pseudo_v4(r.remote.addr.v4_host(), r.local.addr.v4_host(), IPPROTO_TCP,
                          view.tcp_len);
        sum.add({view.tcp, view.tcp_len});
        if (sum.finish() != 0) return drops_.add(DropReason::tcp_checksum);
    }
    r.peer_mac = MacAddr::from(frame->data + 6);
    tcp::SegView& seg = r.seg;
    seg.seq = {load_be32(view.tcp + 4)};
    seg.ack = {load_be32(view.tcp + 8)};
    seg.flags = view.tcp[13];
    seg.wnd = load_be16(view.tcp + 14);
    seg.urg = load_be16(view.tcp + 18);
    seg.ecn = view.ip[1] & 3;
    seg.payload_len = view.tcp_len - uint32_t(view.header_len);
    seg.payload_offset = uint32_t(view.tcp + view.header_len - frame->data);
    seg.gso_size = frame->meta.gso_size;
    parse_tcp_options({view.tcp + kTcpSize, view.header_len - kTcpSize}, seg.opt);
    seg.packet = std::move(frame);
    counters_.segments_in++;

    TcpTarget* target = demux_.lookup(r.local, r.remote);
    const bool opening = (seg.flags & (tcp::kSyn | tcp::kAck)) == tcp::kSyn;
    if ((target == nullptr || target->kind == TcpTarget::Kind::listener) && !opening &&
        was_forgotten(r, now)) {
        if (strays_) strays_->stray(seg.packet->view().subspan(kEthernetSize));
        return;
    }
    if (target == nullptr) {
        drops_.add(DropReason::no_endpoint);
        if (listener_was_forgotten(r, now)) return;
        tcp::SegmentHead head;
        if (tcp::reset_for(seg, head)) reply(head, r, 64, 0);
        return;
    }
    switch (target->kind) {
        case TcpTarget::Kind::connection:
            return to_connection(static_cast<TcpConnection&>(*target), r, now);
        case TcpTarget::Kind::listener:
            return to_listener(static_cast<TcpListener&>(*target), r, now, {}, false);
        case TcpTarget::Kind::half_open:
            return to_half_open(static_cast<TcpHalfOpen&>(*target), r, now);
        case TcpTarget::Kind::time_wait:
            return to_time_wait(static_cast<TcpRemains&>(*target), r, now);
    }
}

// A frame with a tag, IP options or a fragment, an ICMP error, or nonsense. False: it is dealt with; true: `view` is of what `frame`
// has become.
bool TcpEngine::input_unusual(Packet& frame, Tcp4View& view, Instant now) {
    const auto refuse = [&](DropReason why) { return drops_.add(why), false; };
    const auto ethernet = parse_ethernet(frame->view());
    if (!ethernet.ok()) return refuse(ethernet.why());
    const auto ip = parse_ipv4(ethernet->payload);
    if (!ip.ok()) return refuse(ip.why());
    if (ip->header.is_fragment()) {
        DropReason why = DropReason::ip_fragment;
        if (reassembly_) frame = reassemble(*reassembly_, std::move(frame), *ip, now, drops_, why);
        if (reassembly_ && frame)
            input(std::move(frame), now);
        else if (why != DropReason::none)
            drops_.add(why);
        return false;
    }
    if (ip->header.protocol == IPPROTO_ICMP) return icmp(frame, now), false;
    if (ip->header.protocol != IPPROTO_TCP) return refuse(DropReason::ip_protocol);
    const auto segment = parse_tcp(ip->payload);
    if (!segment.ok()) return refuse(segment.why());
    view.ip = ethernet->payload.data();
    view.tcp = ip->payload.data();
    view.tcp_len = uint16_t(ip->payload.size());
    view.header_len = segment->header.header_len;
    return true;
}

void TcpEngine::to_connection(TcpConnection& c, Received& r, Instant now) {
    tcp::Actions actions;
    if (r.seg.payload_len) c.pushed = (r.seg.flags & tcp::kPsh) != 0;
    if (c.text_way) tcp::renew_ack(c.tcb, r.seg);
    const tcp::Verdict verdict = tcp::segment_arrives(c.tcb, r.seg, now, actions);
    // What was answered instead of taken counts too.
    if (verdict.reason != DropReason::none) drops_.add(verdict.reason);
    if (!c.steer_tried && c.tcb.count.segs_in >= kOwnFlowAfter) {
        c.steer_tried = true;
        own_flow(c);
    }
    absorb(c, actions, now);
    // Acknowledgements and answers go out once per batch of frames, if the core does not ask for more.
    if (actions.events & tcp::kAckNow)
        pull(c, now);
    else
        queue_output(c);
}

void TcpEngine::to_listener(TcpListener& l, Received& r, Instant now, Seq iss_above, bool has_iss) {
    if ((r.seg.flags & (tcp::kSyn | tcp::kAck | tcp::kRst)) == tcp::kSyn && !l.syns.admits(now))
        return drops_.add(DropReason::tcp_syn_rate);
    tcp::OpenParams open;
    open.local = r.local;
    open.remote = r.remote;
    open.iss = initial_seq(secret_, r.local, r.remote, now);
    if (has_iss && open.iss <= iss_above) open.iss = iss_above + 1;
    open.ts_offset = timestamp_offset(timestamp_secret_, r.local, r.remote);
    open.memory = &memory_;
    open.secret = &secret_;
    if (l.fast_open_keys.count > 0) open.fast_open_keys = &l.fast_open_keys;
    tcp::Actions actions;
    const tcp::ListenVerdict verdict = tcp::on_syn(l.state, l.config, r.seg, open, now, actions);
    if (verdict.kind == tcp::ListenVerdict::drop) {
        drops_.add(verdict.reason);
        if (verdict.reason == DropReason::tcp_backlog) l.overflows++;
        return;
    }
    if (verdict.kind == tcp::ListenVerdict::reset || verdict.kind == tcp::ListenVerdict::cookie) {
        // What answers a cookie of a detached listener would go to the kernel.
        if (l.detached && verdict.kind == tcp::ListenVerdict::cookie) return;
        if (verdict.kind == tcp::ListenVerdict::cookie) drops_.add(DropReason::tcp_syn_cookie);
        if (actions.has_reply) reply(actions.reply, r, l.ttl, l.tos);
        return;
    }
    if (verdict.kind == tcp::ListenVerdict::fast_open) return open_fast(l, verdict, r, now);
    auto* h = arena_.make<TcpHalfOpen>();
    if (h == nullptr || !demux_.insert({r.local, r.remote}, *h)) {
        arena_.destroy(h);
        drops_.add(DropReason::no_buffer);
        return;
    }
    h->record = verdict.record;
    h->listener = &l;
    h->peer_mac = r.peer_mac;
    l.state.half_open++;
    counters_.half_open++;
    if (l.detached) {
        h->steered = steer({r.local, r.remote}, twin_of(l.owner)).ok();
        if (!h->steered) return destroy(*h);
    }
    if (verdict.kind == tcp::ListenVerdict::established) return to_half_open(*h, r, now);
    if (actions.has_reply) reply(actions.reply, r, l.ttl, l.tos);
    queue_deadline(*h, tcp::deadline(h->record));
}

void TcpEngine::to_half_open(TcpHalfOpen& h, Received& r, Instant now) {
    tcp::Actions actions;
    TcpListener& l = *h.listener;
    const auto verdict = tcp::segment_arrives(h.record, l.state, l.config, r.seg, now, actions);
    if (actions.has_reply) reply(actions.reply, r, l.ttl, l.tos);
    switch (verdict) {
        case tcp::HalfOpenVerdict::keep:
            queue_deadline(h, tcp::deadline(h.record));
            return;
        case tcp::HalfOpenVerdict::remove:
            return destroy(h);
        case tcp::HalfOpenVerdict::establish:
            return establish(h, r, now);
    }
}

TcpConnection* TcpEngine::make_accepted(TcpListener& l, const tcp::HalfOpen& record,
                                        const MacAddr& mac) {
    auto* c = arena_.make<TcpConnection>();
    if (c == nullptr) return nullptr;
    c->tuple = {record.local, record.remote};
    c->path.dst_mac = mac;
    c->path.resolved = true;
    c->path.neighbor_generation = monitor_ ? monitor_->neighbor_generation() : 0;
    c->path.ifindex = shard_.ifindex();
    c->path.next_hop = record.remote.addr;
    c->path.ttl = l.ttl;
    c->path.tos = l.tos;
    c->ip_id = uint16_t(rng_.next());
    return c;
}

// False: no memory, and the connection is gone.
bool TcpEngine::enqueue_accepted(TcpListener& l, TcpConnection& c) {
    if (!demux_.insert(c.tuple, c)) {
        if (c.steered) unsteer(c.tuple);
        tcp::release(c.tcb);
        arena_.destroy(&c);
        drops_.add(DropReason::no_buffer);
        return false;
    }
    c.in_demux = true;
    // No flow of its own, as a rule: the listener's covers it (kOwnFlowAfter).
    if (!c.steered) {
        young_.push_back(c);
        has_young_.store(true, std::memory_order_relaxed);
    }
    counters_.connections++;
    c.listener = &l;
    l.ready.push_back(c);
    l.state.accept_queue++;
    if (!l.news_hook.linked()) listener_news_.push_back(l);
    return true;
}

void TcpEngine::establish(TcpHalfOpen& h, Received& r, Instant now) {
    TcpListener& l = *h.listener;
    TcpConnection* c = make_accepted(l, h.record, h.peer_mac);
    if (c == nullptr) return drops_.add(DropReason::no_buffer);  // the peer repeats its segment
    tcp::TcpConfig here = l.config;
    here.mss = uint16_t(paths_.mtu_to(r.remote.addr, here.mss + 40u, now) - 40);
    tcp::establish(c->tcb, h.record, here, memory_, now);
    c->steered = std::exchange(h.steered, false);
    destroy(h);
    if (enqueue_accepted(l, *c)) to_connection(*c, r, now);
}

void TcpEngine::open_fast(TcpListener& l, const tcp::ListenVerdict& verdict, Received& r,
                          Instant now) {
    TcpConnection* c = make_accepted(l, verdict.record, r.peer_mac);
    if (c == nullptr) return drops_.add(DropReason::no_buffer);
    tcp::TcpConfig here = l.config;
    here.mss = uint16_t(paths_.mtu_to(r.remote.addr, here.mss + 40u, now) - 40);
    tcp::Actions actions;
    tcp::open_fast(c->tcb, verdict.record, here, memory_, r.seg, verdict.newer, now, actions);
    if (!enqueue_accepted(l, *c)) return;
    c->fast_opener = &l;
    l.state.fast_open++;
    absorb(*c, actions, now);
    queue_output(*c);
}

// The handshake is over: what it told about the peer's Fast Open is kept, a listener's place is free again.
void TcpEngine::note_handshake(TcpConnection& c, Instant now) {
    if (TcpListener* l = std::exchange(c.fast_opener, nullptr)) l->state.fast_open--;
    const tcp::FastOpen& f = c.tcb.fast_open;
    if (!f.client && f.room == 0) return;
    PathCache::Entry& e = paths_.make(c.tuple.remote.addr, now);
    e.mss = c.tcb.snd.peer_mss;
    if (f.news) e.cookie = f.cookie;
    if (f.failure == 3) {
        if (e.losses < 255) e.losses++;
        e.loss_at = now;
    } else {
        e.losses = 0;
    }
}

// A router's word about the way to `remote`: for connections that come, and for those that are there.
void TcpEngine::path_mtu(const IpAddr& remote, uint32_t mtu, Instant now) {
    constexpr uint32_t kLeast = 552;  // net.ipv4.route.min_pmtu
    mtu = std::max(mtu, kLeast);
    if (paths_.mtu_to(remote, UINT32_MAX, now) <= mtu) return;
    paths_.learn_mtu(remote, mtu, now);
    demux_.for_each([&](TcpTarget& target) {
        if (target.kind != TcpTarget::Kind::connection) return;
        auto& c = static_cast<TcpConnection&>(target);
        if (!(c.tuple.remote.addr == remote) || mtu - 40 >= c.tcb.cfg.mss) return;
        tcp::Actions actions;
        tcp::path_mss_changed(c.tcb, uint16_t(mtu - 40), actions);
        absorb(c, actions, now);
    });
}

void TcpEngine::to_time_wait(TcpRemains& w, Received& r, Instant now) {
    tcp::Actions actions;
    Seq above;
    const auto verdict = tcp::segment_arrives(w.record, r.seg, now, actions, above);
    if (actions.has_reply) reply(actions.reply, r, w.ttl, w.tos);
    if (verdict == tcp::TimeWaitVerdict::keep) return queue_deadline(w, tcp::deadline(w.record));
    destroy(w);
    if (verdict != tcp::TimeWaitVerdict::reuse) return;
    TcpTarget* target = demux_.lookup(r.local, r.remote);
    if (target && target->kind == TcpTarget::Kind::listener)
        to_listener(static_cast<TcpListener&>(*target), r, now, above, true);
}

// An ICMP error about one of our segments (RFC 5927: only when the quoted sequence number is in flight).
void TcpEngine::icmp(const Packet& frame, Instant now) {
    const auto ethernet = parse_ethernet(frame->view());
    const auto ip = parse_ipv4(ethernet->payload);
    const auto error = parse_icmp_error(ip->payload);
    if (!error.ok()) return drops_.add(error.why());
    if (error->quoted.header.protocol != IPPROTO_TCP) return drops_.add(DropReason::ip_protocol);
    const Endpoint local{IpAddr::v4(error->quoted.header.src), error->quoted_src_port()};
    const Endpoint remote{IpAddr::v4(error->quoted.header.dst), error->quoted_dst_port()};
    TcpTarget* target = demux_.find_exact({local, remote});
    if (target == nullptr || target->kind != TcpTarget::Kind::connection)
        return drops_.add(DropReason::no_endpoint);
    auto& c = static_cast<TcpConnection&>(*target);
    const Seq quoted{error->quoted_seq()};
    constexpr uint8_t kUnreachable = 3, kFragmentationNeeded = 4;
    const uint8_t type = error->header.type, code = error->header.code;
    tcp::Actions actions;
    bool believed;
    if (type == kUnreachable && code == kFragmentationNeeded) {
        believed = tcp::path_too_big(c.tcb, quoted, error->header.mtu, 40, actions);
        if (believed) path_mtu(remote.addr, error->header.mtu, now);
    } else {
        // RFC 1122 4.2.3.9 calls these soft for a synchronised connection; one that is opening fails, as in Linux.
        static constexpr int kErrno[] = {ENETUNREACH, EHOSTUNREACH, ENOPROTOOPT, ECONNREFUSED};
        const bool port = type == kUnreachable && code < 4;
        believed = tcp::path_error(c.tcb, quoted, port ? kErrno[code] : EHOSTUNREACH, actions);
    }
    if (!believed) return drops_.add(DropReason::tcp_state);
    absorb(c, actions, now);
    queue_output(c);
}

}  // namespace vma
