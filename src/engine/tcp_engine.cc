#include "engine/tcp_engine.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "engine/network_monitor.h"
#include "engine/shard.h"
#include "engine/tcp_defaults.h"
#include "wire/checksum.h"
#include "wire/icmp.h"
#include "wire/ipv4.h"
#include "wire/tcp.h"

namespace vma {

TcpSink* TcpEngine::sink_ = nullptr;

namespace {

// An accepted connection is steered by its listener's flow, under which the hook asks the kernel for a connection of its own
// with every segment. One that lives longer gets a flow of its own, which costs a few system calls once.
constexpr uint64_t kOwnFlowAfter = 64;
constexpr Duration kForgottenFor = Duration::seconds(1);
constexpr Duration kNeighborRetry = Duration::millis(5);
constexpr uint32_t kMaxHead = 14 + 20 + 60;
constexpr unsigned kPlansPerPull = 64;  // a sender must not keep the lease for ever

void* arena_take(void* owner, size_t bytes) { return static_cast<Arena*>(owner)->allocate(bytes); }
void arena_give(void* owner, void* block, size_t bytes) {
    static_cast<Arena*>(owner)->free(block, bytes);
}

}  // namespace

// A frame taken apart. `seg.packet` holds it.
struct TcpEngine::Received {
    Endpoint local, remote;
    MacAddr peer_mac{};
    tcp::SegView seg;
};

TcpEngine::TcpEngine(Arena& arena, Shard& shard, IsnSecret secret)
    : arena_(arena),
      shard_(shard),
      secret_(secret),
      memory_(arena),
      demux_(DemuxMemory{&arena, arena_take, arena_give}, secret.k0 ^ 0x7f4a7c15u),
      rng_(secret.k1) {}

// ---- deadlines: a binary heap over the records themselves. A deadline that moves later leaves the record where it is; it
// is looked at again when its old time comes.

void TcpEngine::sift_up(uint32_t i) {
    TcpTarget* item = heap_[i];
    while (i > 0) {
        const uint32_t parent = (i - 1) / 2;
        if (heap_[parent]->heap_at <= item->heap_at) break;
        heap_[i] = heap_[parent];
        heap_[i]->heap_index = i;
        i = parent;
    }
    heap_[i] = item;
    item->heap_index = i;
}

void TcpEngine::sift_down(uint32_t i) {
    TcpTarget* item = heap_[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= heap_size_) break;
        if (child + 1 < heap_size_ && heap_[child + 1]->heap_at < heap_[child]->heap_at) child++;
        if (item->heap_at <= heap_[child]->heap_at) break;
        heap_[i] = heap_[child];
        heap_[i]->heap_index = i;
        i = child;
    }
    heap_[i] = item;
    item->heap_index = i;
}

void TcpEngine::queue_deadline(TcpTarget& target, Instant at) {
    if (at.is_never()) return;
    if (target.heap_index != TcpTarget::kNotQueued) {
        if (target.heap_at <= at) return;
        target.heap_at = at;
        sift_up(target.heap_index);
    } else {
        if (heap_size_ == heap_room_) {
            const uint32_t room = heap_room_ ? heap_room_ * 2 : 256;
            auto** bigger = static_cast<TcpTarget**>(arena_.allocate(room * sizeof(TcpTarget*)));
            if (bigger == nullptr) return;  // the record is looked at again with its next segment
            std::copy(heap_, heap_ + heap_size_, bigger);
            if (heap_) arena_.free(heap_, heap_room_ * sizeof(TcpTarget*));
            heap_ = bigger;
            heap_room_ = room;
        }
        target.heap_at = at;
        heap_[heap_size_] = &target;
        sift_up(heap_size_++);
    }
    if (target.heap_index == 0) shard_.deadline_moved(at);
}

void TcpEngine::drop_deadline(TcpTarget& target) {
    if (target.heap_index == TcpTarget::kNotQueued) return;
    const uint32_t i = target.heap_index;
    target.heap_index = TcpTarget::kNotQueued;
    TcpTarget* last = heap_[--heap_size_];
    if (last == &target) return;
    heap_[i] = last;
    last->heap_index = i;
    sift_up(i);
    sift_down(last->heap_index);
}

void TcpEngine::run_deadlines(Instant now) {
    while (heap_size_ && heap_[0]->heap_at <= now) {
        TcpTarget& target = *heap_[0];
        drop_deadline(target);
        tcp::Actions actions;
        switch (target.kind) {
            case TcpTarget::Kind::connection: {
                auto& c = static_cast<TcpConnection&>(target);
                const Instant due = tcp::deadline(c.tcb);
                if (due <= now) {
                    tcp::deadline_reached(c.tcb, now, actions);
                    absorb(c, actions, now);
                }
                queue_output(c);
                break;
            }
            case TcpTarget::Kind::half_open: {
                auto& h = static_cast<TcpHalfOpen&>(target);
                if (tcp::deadline(h.record) > now) {
                    queue_deadline(h, tcp::deadline(h.record));
                    break;
                }
                const auto verdict =
                    tcp::deadline_reached(h.record, h.listener->config, now, actions);
                if (actions.has_reply) {
                    Received to;
                    to.local = h.record.local;
                    to.remote = h.record.remote;
                    to.peer_mac = h.peer_mac;
                    reply(actions.reply, to, h.listener->ttl, h.listener->tos);
                }
                if (verdict == tcp::HalfOpenVerdict::remove)
                    destroy(h);
                else
                    queue_deadline(h, tcp::deadline(h.record));
                break;
            }
            case TcpTarget::Kind::time_wait: {
                auto& w = static_cast<TcpRemains&>(target);
                if (tcp::deadline(w.record) > now)
                    queue_deadline(w, tcp::deadline(w.record));
                else
                    destroy(w);
                break;
            }
            case TcpTarget::Kind::listener:
                break;
        }
    }
    flush(now);
}

// ---- frames out

bool TcpEngine::send_segment(const tcp::SegmentHead& head, const TcpPath& path,
                             const FlowTuple& tuple, uint16_t* ip_id,
                             const tcp::SegmentPlan* plan) {
    uint8_t bytes[kMaxHead];
    const uint32_t payload = plan ? plan->payload_len : 0;
    const auto options = emit_tcp_options(head.opt, ByteSpan(bytes + 54, 40));
    if (!options) return false;
    const uint32_t tcp_len = kTcpSize + *options + payload;
    emit_ethernet({path.dst_mac, shard_.mac(), ethertype::ipv4, false, 0}, ByteSpan(bytes, 14));
    Ipv4Header ip;
    ip.src = tuple.local.addr.v4_host();
    ip.dst = tuple.remote.addr.v4_host();
    ip.total_len = uint16_t(std::min<uint32_t>(20 + tcp_len, 65535));
    ip.id = ip_id ? (*ip_id)++ : 0;
    ip.dont_fragment = true;
    ip.tos =
        uint8_t((path.tos & ~3u) | (head.ect ? 2u : 0u));  // ECN is TCP's, not the application's
    ip.ttl = path.ttl;
    ip.protocol = IPPROTO_TCP;
    emit_ipv4(ip, ByteSpan(bytes + 14, 20));
    TcpHeader header;
    header.src_port = tuple.local.port;
    header.dst_port = tuple.remote.port;
    header.seq = head.seq;
    header.ack = head.ack;
    header.flags = head.flags;
    header.header_len = uint8_t(kTcpSize + *options);
    header.window = head.wnd;
    header.urgent = head.urg;
    const bool offload = shard_.caps().tx_checksum;
    Checksum pseudo;
    pseudo.add_pseudo_v4(ip.src, ip.dst, IPPROTO_TCP, uint16_t(tcp_len));
    if (offload) header.checksum = pseudo.sum();
    emit_tcp(header, ByteSpan(bytes + 34, 20));

    TxFrame frame;
    frame.head = {bytes, 54 + *options};
    if (plan) {
        frame.payload = plan->slices;
        frame.payload_count = plan->slice_count;
        frame.payload_len = payload;
        frame.gso_size = plan->gso_size;
        frame.gso = plan->gso_size ? Gso::tcp_v4 : Gso::none;
    }
    frame.cwr = (head.flags & tcp::kCwr) != 0;
    if (offload) {
        frame.csum_start = 34;
        frame.csum_offset = kTcpChecksumOffset;
    } else {
        pseudo.add(ByteView(bytes + 34, kTcpSize + *options));
        if (plan) pseudo.add_iovecs(plan->slices, plan->slice_count);
        store_be16(bytes + 34 + kTcpChecksumOffset, pseudo.finish());
    }
    counters_.segments_out++;
    if (shard_.send(frame) == 0) return true;
    counters_.frames_refused++;
    return false;
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
    if (monitor_ == nullptr) return path.resolved;
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

void TcpEngine::queue_output(TcpConnection& c) {
    if (!c.output_hook.linked()) output_.push_back(c);
}

void TcpEngine::pull(TcpConnection& c, Instant now) {
    c.output_hook.unlink();
    if (path_ready(c, now)) {
        tcp::SegmentPlan plan;
        for (unsigned i = 0; i < kPlansPerPull && tcp::next_segment(c.tcb, now, plan); i++) {
            if (plan.head.flags & tcp::kRst) counters_.resets_sent++;
            send_segment(plan.head, c.path, c.tuple, &c.ip_id, &plan);
            if (i + 1 == kPlansPerPull) queue_output(c);
        }
    }
    queue_deadline(c, tcp::deadline(c.tcb));
}

// ---- events

void TcpEngine::absorb(TcpConnection& c, const tcp::Actions& actions, Instant now) {
    if (actions.events & tcp::kFailed) c.error = actions.error;
    c.events |= actions.events;
    if (actions.has_reply) send_segment(actions.reply, c.path, c.tuple, &c.ip_id, nullptr);
    if (actions.events & (tcp::kOutput | tcp::kConnected)) queue_output(c);
    if (c.events & ~uint32_t(tcp::kOutput)) {
        if (!c.news_hook.linked()) news_.push_back(c);
    }
    (void)now;
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

// ---- frames in

void TcpEngine::input(Packet frame, Instant now) {
    const auto ethernet = parse_ethernet(frame->view());
    if (!ethernet.ok()) return drops_.add(ethernet.why());
    const auto ip = parse_ipv4(ethernet->payload);
    if (!ip.ok()) return drops_.add(ip.why());
    if (ip->header.is_fragment()) return drops_.add(DropReason::ip_fragment);
    if (ip->header.protocol == IPPROTO_ICMP) return icmp(frame, now);
    if (ip->header.protocol != IPPROTO_TCP) return drops_.add(DropReason::ip_protocol);
    const auto segment = parse_tcp(ip->payload);
    if (!segment.ok()) return drops_.add(segment.why());
    if (!frame->meta.checksum_good) {
        Checksum sum;
        sum.add_pseudo_v4(ip->header.src, ip->header.dst, IPPROTO_TCP,
                          uint16_t(ip->payload.size()));
        sum.add(ip->payload);
        if (sum.finish() != 0) return drops_.add(DropReason::tcp_checksum);
    }
    Received r;
    r.local = {IpAddr::v4(ip->header.dst), segment->header.dst_port};
    r.remote = {IpAddr::v4(ip->header.src), segment->header.src_port};
    r.peer_mac = ethernet->header.src;
    tcp::SegView& seg = r.seg;
    seg.seq = segment->header.seq;
    seg.ack = segment->header.ack;
    seg.wnd = segment->header.window;
    seg.urg = segment->header.urgent;
    seg.ecn = ip->header.tos & 3;
    seg.flags = segment->header.flags;
    seg.payload_len = uint32_t(segment->payload.size());
    seg.payload_offset = uint32_t(segment->payload.data() - frame->data);
    seg.gso_size = frame->meta.gso_size;
    parse_tcp_options(segment->options, seg.opt);
    seg.packet = std::move(frame);
    counters_.segments_in++;

    TcpTarget* target = demux_.lookup(r.local, r.remote);
    if (target == nullptr) {
        drops_.add(DropReason::no_endpoint);
        tcp::SegmentHead head;
        if (was_forgotten(r, now)) return;
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

void TcpEngine::to_connection(TcpConnection& c, Received& r, Instant now) {
    tcp::Actions actions;
    const tcp::Verdict verdict = tcp::segment_arrives(c.tcb, r.seg, now, actions);
    if (verdict.kind == tcp::Verdict::Drop) drops_.add(verdict.reason);
    if (!c.steered && c.tcb.count.segs_in == kOwnFlowAfter) c.steered = steer(c.tuple);
    absorb(c, actions, now);
    // Acknowledgements and answers go out once per batch of frames.
    queue_output(c);
}

void TcpEngine::to_listener(TcpListener& l, Received& r, Instant now, Seq iss_above, bool has_iss) {
    tcp::OpenParams open;
    open.local = r.local;
    open.remote = r.remote;
    open.iss = initial_seq(secret_, r.local, r.remote, now);
    if (has_iss && open.iss <= iss_above) open.iss = iss_above + 1;
    open.ts_offset = timestamp_offset(secret_, r.local, r.remote);
    open.memory = &memory_;
    open.secret = &secret_;
    tcp::Actions actions;
    const tcp::ListenVerdict verdict = tcp::on_syn(l.state, l.config, r.seg, open, now, actions);
    if (verdict.kind == tcp::ListenVerdict::drop) {
        drops_.add(verdict.reason);
        if (verdict.reason == DropReason::tcp_backlog) l.overflows++;
        return;
    }
    if (verdict.kind == tcp::ListenVerdict::reset || verdict.kind == tcp::ListenVerdict::cookie) {
        if (actions.has_reply) reply(actions.reply, r, l.ttl, l.tos);
        return;
    }
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

void TcpEngine::establish(TcpHalfOpen& h, Received& r, Instant now) {
    TcpListener& l = *h.listener;
    auto* c = arena_.make<TcpConnection>();
    if (c == nullptr) return drops_.add(DropReason::no_buffer);  // the peer repeats its segment
    tcp::establish(c->tcb, h.record, l.config, memory_, now);
    c->tuple = {h.record.local, h.record.remote};
    c->path.dst_mac = h.peer_mac;
    c->path.resolved = true;
    c->path.neighbor_generation = monitor_ ? monitor_->neighbor_generation() : 0;
    c->path.ifindex = shard_.ifindex();
    c->path.next_hop = h.record.remote.addr;
    c->path.ttl = l.ttl;
    c->path.tos = l.tos;
    c->ip_id = uint16_t(rng_.next());
    destroy(h);
    if (!demux_.insert(c->tuple, *c)) {
        tcp::release(c->tcb);
        arena_.destroy(c);
        return drops_.add(DropReason::no_buffer);
    }
    c->in_demux = true;
    // No flow of its own yet: the listener's covers it (kOwnFlowAfter).
    counters_.connections++;
    c->listener = &l;
    l.ready.push_back(*c);
    l.state.accept_queue++;
    to_connection(*c, r, now);
    if (!l.news_hook.linked()) listener_news_.push_back(l);
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

// ---- records

bool TcpEngine::steer(const FlowTuple& tuple) {
    FlowKey key;
    key.local = tuple.local;
    key.remote = tuple.remote.port ? tuple.remote : Endpoint{};
    key.protocol = IPPROTO_TCP;
    return shard_.steer(key).ok();
}

void TcpEngine::unsteer(const FlowTuple& tuple) {
    FlowKey key;
    key.local = tuple.local;
    key.remote = tuple.remote.port ? tuple.remote : Endpoint{};
    key.protocol = IPPROTO_TCP;
    shard_.unsteer(key);
}

bool TcpEngine::may_connect(const FlowTuple& tuple, Instant now) {
    TcpTarget* const there = demux_.find_exact(tuple);
    Seq above;
    return there == nullptr ||
           (there->kind == TcpTarget::Kind::time_wait &&
            tcp::may_reuse(static_cast<TcpRemains&>(*there).record, now, above));
}

Result<TcpConnection*> TcpEngine::connect(const FlowTuple& tuple, const tcp::TcpConfig& config,
                                          const TcpPath& path, NetworkMonitor& monitor, void* owner,
                                          Instant now) {
    monitor_ = &monitor;
    Seq iss = initial_seq(secret_, tuple.local, tuple.remote, now);
    if (TcpTarget* there = demux_.find_exact(tuple)) {
        Seq above;
        if (there->kind != TcpTarget::Kind::time_wait ||
            !tcp::may_reuse(static_cast<TcpRemains&>(*there).record, now, above))
            return Errno{EADDRNOTAVAIL};
        if (iss <= above) iss = above + 1;
        destroy(static_cast<TcpRemains&>(*there));
    }
    auto* c = arena_.make<TcpConnection>();
    if (c == nullptr) return Errno{ENOMEM};
    c->tuple = tuple;
    c->path = path;
    c->owner = owner;
    c->ip_id = uint16_t(rng_.next());
    tcp::OpenParams open;
    open.local = tuple.local;
    open.remote = tuple.remote;
    open.iss = iss;
    open.ts_offset = timestamp_offset(secret_, tuple.local, tuple.remote);
    open.memory = &memory_;
    if (!demux_.insert(tuple, *c)) {
        arena_.destroy(c);
        return Errno{ENOMEM};
    }
    c->in_demux = true;
    if (!steer(tuple)) {
        demux_.remove(tuple);
        arena_.destroy(c);
        return Errno{EADDRINUSE};
    }
    c->steered = true;
    counters_.connections++;
    tcp::connect(c->tcb, open, config, now);
    pull(*c, now);
    return c;
}

Result<TcpListener*> TcpEngine::listen(const Endpoint& local, const tcp::TcpConfig& config,
                                       uint32_t backlog, NetworkMonitor& monitor, void* owner) {
    monitor_ = &monitor;
    auto* l = arena_.make<TcpListener>();
    if (l == nullptr) return Errno{ENOMEM};
    l->tuple.local = local;
    l->config = config;
    l->state.backlog = backlog;
    l->state.max_half_open = half_open_limit();
    l->owner = owner;
    if (const Status inserted = demux_.insert(l->tuple, *l); !inserted) {
        arena_.destroy(l);
        return Errno{inserted.error()};
    }
    counters_.listeners++;
    return l;
}

void TcpEngine::detach_listener(TcpListener& l) {
    // Embryos: found by walking the table; this is rare.
    for (;;) {
        TcpHalfOpen* embryo = nullptr;
        demux_.for_each([&](TcpTarget& target) {
            if (embryo == nullptr && target.kind == TcpTarget::Kind::half_open &&
                static_cast<TcpHalfOpen&>(target).listener == &l)
                embryo = &static_cast<TcpHalfOpen&>(target);
        });
        if (embryo == nullptr) break;
        destroy(*embryo);
    }
    // The flows go next: connections that live under them get one of their own first.
    demux_.for_each([&](TcpTarget& target) {
        if (target.kind != TcpTarget::Kind::connection) return;
        auto& c = static_cast<TcpConnection&>(target);
        if (!c.steered && c.tuple.local.port == l.tuple.local.port &&
            (l.tuple.local.addr.is_any() || c.tuple.local.addr == l.tuple.local.addr))
            c.steered = steer(c.tuple);
    });
}

void TcpEngine::forget(TcpConnection& c, Instant now) {
    forgotten_[next_forgotten_++ % kForgotten] = {c.tuple, now + kForgottenFor};
    c.owner = nullptr;
    destroy(c);
}

bool TcpEngine::was_forgotten(const Received& r, Instant now) const {
    for (const Forgotten& f : forgotten_)
        if (f.until > now && f.tuple.local == r.local && f.tuple.remote == r.remote) return true;
    return false;
}

void TcpEngine::close_listener(TcpListener& l, Instant now) {
    detach_listener(l);
    demux_.remove(l.tuple);
    l.news_hook.unlink();
    l.owner = nullptr;
    while (TcpConnection* c = l.ready.pop_front()) {
        c->listener = nullptr;
        tcp::Actions actions;
        tcp::abort(c->tcb, 0, actions);
        absorb(*c, actions, now);
        pull(*c, now);
        if (!c->news_hook.linked()) news_.push_back(*c);
    }
    counters_.listeners--;
    flush(now);
    arena_.destroy(&l);
}

TcpConnection* TcpEngine::accept(TcpListener& l, void* owner) {
    TcpConnection* c = l.ready.pop_front();
    if (c == nullptr) return nullptr;
    l.state.accept_queue--;
    c->listener = nullptr;
    c->owner = owner;
    return c;
}

uint64_t TcpEngine::unfinished() const {
    uint64_t n = 0;
    demux_.for_each([&](TcpTarget& target) {
        if (target.kind == TcpTarget::Kind::connection)
            n += is_unfinished(static_cast<TcpConnection&>(target));
    });
    return n;
}

void TcpEngine::release_owner(TcpConnection& c, uint64_t token, Instant now) {
    c.owner = nullptr;
    c.orphan_token = token;
    pull(c, now);
    if (c.tcb.state == tcp::State::CLOSED)
        destroy(c);
    else if (c.tcb.state == tcp::State::TIME_WAIT)
        become_time_wait(c, now);
}

void TcpEngine::become_time_wait(TcpConnection& c, Instant now) {
    auto* w = arena_.make<TcpRemains>();
    if (w == nullptr) return;  // the Tcb itself stays until its time is over
    w->record = tcp::time_wait_of(c.tcb);
    w->peer_mac = c.path.dst_mac;
    w->ttl = c.path.ttl;
    w->tos = c.path.tos;
    w->steered = c.steered;
    const FlowTuple tuple = c.tuple;
    c.steered = false;
    destroy(
        c);  // gives the port hold back: the record below keeps the tuple from being used too early
    if (!demux_.insert(tuple, *w)) {
        if (w->steered) unsteer(tuple);
        arena_.destroy(w);
        return;
    }
    counters_.time_wait++;
    queue_deadline(*w, tcp::deadline(w->record));
    (void)now;
}

// A closed connection has no tuple any more, however long its socket is kept: the peer may connect from the same port.
void TcpEngine::leave_tuple(TcpConnection& c) {
    if (std::exchange(c.in_demux, false)) demux_.remove(c.tuple);
    if (std::exchange(c.steered, false)) unsteer(c.tuple);
}

void TcpEngine::destroy(TcpConnection& c) {
    drop_deadline(c);
    c.output_hook.unlink();
    c.news_hook.unlink();
    c.accept_hook.unlink();
    leave_tuple(c);
    tcp::release(c.tcb);
    if (c.orphan_token && sink_) sink_->tcp_orphan_gone(c.orphan_token);
    counters_.connections--;
    arena_.destroy(&c);
}

void TcpEngine::destroy(TcpHalfOpen& h) {
    drop_deadline(h);
    demux_.remove({h.record.local, h.record.remote});
    h.listener->state.half_open--;
    counters_.half_open--;
    arena_.destroy(&h);
}

void TcpEngine::destroy(TcpRemains& w) {
    drop_deadline(w);
    const FlowTuple tuple{w.record.local, w.record.remote};
    demux_.remove(tuple);
    if (w.steered) unsteer(tuple);
    counters_.time_wait--;
    arena_.destroy(&w);
}

}  // namespace vma
