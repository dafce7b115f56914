// The records of TcpEngine: connections, listeners, what remains of both.
#include "engine/tcp_engine.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/shard.h"
#include "engine/tcp_defaults.h"
#include "engine/tcp_received.h"

namespace vma {
namespace {

constexpr Duration kForgottenFor = Duration::seconds(1);

void* arena_take(void* owner, size_t bytes) { return static_cast<Arena*>(owner)->allocate(bytes); }
void arena_give(void* owner, void* block, size_t bytes) {
    static_cast<Arena*>(owner)->free(block, bytes);
}

}  // namespace

TcpEngine::TcpEngine(Arena& arena, Shard& shard, IsnSecret secret)
    : arena_(arena),
      shard_(shard),
      secret_(secret),
      timestamp_secret_(timestamp_secret()),
      memory_(arena),
      demux_(DemuxMemory{&arena, arena_take, arena_give}, secret.k0 ^ 0x7f4a7c15u),
      rng_(secret.k1) {}

Status TcpEngine::steer(const FlowTuple& tuple, int twin) {
    FlowKey key;
    key.local = tuple.local;
    key.remote = tuple.remote.port ? tuple.remote : Endpoint{};
    key.protocol = IPPROTO_TCP;
    return shard_.steer(key, twin);
}

bool TcpEngine::steer_accepted(const TcpConnection& c, const TcpListener* listener) {
    const Status done = steer(c.tuple, twin_of(listener ? listener->owner : nullptr));
    if (done || (done.error() != EACCES && done.error() != EBADF && done.error() != EINVAL))
        return done.ok();
    // The program may have closed the listener's descriptor already.
    return steer(c.tuple, twin_of(c.owner)).ok();
}

void TcpEngine::own_flow(TcpConnection& c) {
    c.young_hook.unlink();
    if (c.steered) return;
    const TcpTarget* const covers = demux_.lookup(c.tuple.local, Endpoint{});
    c.steered = steer_accepted(c, covers && covers->kind == TcpTarget::Kind::listener
                                      ? static_cast<const TcpListener*>(covers)
                                      : nullptr);
}

void TcpEngine::own_flows(unsigned most) {
    for (; most > 0; most--) {
        TcpConnection* const c = older_.pop_front();
        if (c == nullptr) break;
        if (c->in_demux) own_flow(*c);
    }
    older_.splice_back(young_);
    has_young_.store(!older_.empty(), std::memory_order_relaxed);
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
                                          Instant now, TcpFirstText* first) {
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
    open.ts_offset = timestamp_offset(timestamp_secret_, tuple.local, tuple.remote);
    open.memory = &memory_;
    if (!demux_.insert(tuple, *c)) {
        arena_.destroy(c);
        return Errno{ENOMEM};
    }
    c->in_demux = true;
    if (const Status steered = steer(tuple, twin_of(owner)); !steered) {
        demux_.remove(tuple);
        arena_.destroy(c);
        return Errno{steered.error() == EEXIST ? EADDRINUSE : steered.error()};
    }
    c->steered = true;
    counters_.connections++;
    tcp::TcpConfig here = config;
    here.mss = uint16_t(paths_.mtu_to(tuple.remote.addr, here.mss + 40u, now) - 40);
    if (first) {
        const PathCache::Entry* known = paths_.find(tuple.remote.addr, now);
        const bool held = known && known->fast_open_held(now);
        open.fast_open = !held;
        open.no_cookie = !held && (config.fast_open & tcp::fast_open::client_no_cookie) != 0;
        if (known) open.cookie = known->cookie;
        // 40: no set of options is larger.
        open.fast_open_room =
            uint16_t(std::min<uint32_t>(here.mss, known && known->mss ? known->mss : 536) - 40);
    }
    tcp::connect(c->tcb, open, here, now);
    if (first && first->hold)
        c->tcb.syn_due = false;
    else if (first)
        send_first_text(*c, *first, now);
    else
        pull(*c, now);
    return c;
}

bool TcpEngine::has_cookie(const IpAddr& remote, Instant now) {
    const PathCache::Entry* known = paths_.find(remote, now);
    return known && known->cookie.len > 0 && !known->fast_open_held(now);
}

void TcpEngine::send_first_text(TcpConnection& c, TcpFirstText& first, Instant now) {
    tcp::Actions actions;
    size_t room = c.tcb.fast_open.room;
    for (size_t i = 0; i < first.count && room > 0; ++i) {
        const size_t n = std::min(first.iov[i].iov_len, room);
        const size_t took = tcp::write(c.tcb, first.iov[i].iov_base, n, now, actions);
        first.taken += took;
        room -= took;
        if (took < n) break;
    }
    c.tcb.syn_due = true;
    pull(c, now);
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
    if (std::exchange(l.detached, true)) return;
    // The flows go next: what lives under them gets one of its own first. Found by walking the table; this is rare.
    unsigned kept = 0;
    demux_.for_each([&](TcpTarget& target) {
        if (target.kind == TcpTarget::Kind::half_open) {
            auto& h = static_cast<TcpHalfOpen&>(target);
            if (h.listener == &l && kept < kMostKept) {
                h.steered = steer({h.record.local, h.record.remote}, twin_of(l.owner)).ok();
                kept += h.steered;
            }
        } else if (target.kind == TcpTarget::Kind::connection) {
            auto& c = static_cast<TcpConnection&>(target);
            if (!c.steered && c.tuple.local.port == l.tuple.local.port &&
                (l.tuple.local.addr.is_any() || c.tuple.local.addr == l.tuple.local.addr))
                c.steered = steer_accepted(c, &l);
        }
    });
    destroy_half_open(l, [](const TcpHalfOpen& h) { return !h.steered; });
}

template <class Which>
void TcpEngine::destroy_half_open(TcpListener& l, Which&& which) {
    constexpr unsigned kBatch = 256;
    for (;;) {
        std::array<TcpHalfOpen*, kBatch> found;
        unsigned n = 0;
        demux_.for_each([&](TcpTarget& target) {
            if (n == kBatch || target.kind != TcpTarget::Kind::half_open) return;
            auto& h = static_cast<TcpHalfOpen&>(target);
            if (h.listener == &l && which(h)) found[n++] = &h;
        });
        for (unsigned i = 0; i < n; i++) destroy(*found[i]);
        if (n < kBatch) return;
    }
}

void TcpEngine::remember_as_forgotten(const FlowTuple& tuple, Instant now) {
    forgotten_[next_forgotten_++ % kForgotten] = {tuple, now + kForgottenFor, shard_.empty_polls()};
}

void TcpEngine::forget(TcpConnection& c, Instant now) {
    remember_as_forgotten(c.tuple, now);
    c.owner = nullptr;
    destroy(c);
}

Status TcpEngine::take_flow(const FlowTuple& tuple, int twin) {
    if (demux_.find_exact(tuple)) return Errno{EADDRINUSE};
    FlowKey key;
    key.local = tuple.local;
    key.remote = tuple.remote;
    key.protocol = IPPROTO_TCP;
    return shard_.steer(key, twin);
}

void TcpEngine::release_flow(const FlowTuple& tuple, Instant now) {
    unsteer(tuple);
    remember_as_forgotten(tuple, now);
}

Result<TcpConnection*> TcpEngine::adopt(const FlowTuple& tuple, const tcp::Snapshot& snapshot,
                                        ByteView to_send, ByteView unread,
                                        const tcp::TcpConfig& config, const TcpPath& path,
                                        NetworkMonitor& monitor, void* owner, Instant now) {
    monitor_ = &monitor;
    auto* c = arena_.make<TcpConnection>();
    if (c == nullptr) return Errno{ENOMEM};
    tcp::TcpConfig here = config;
    here.mss = uint16_t(paths_.mtu_to(tuple.remote.addr, here.mss + 40u, now) - 40);
    Status made =
        tcp::import_snapshot(c->tcb, snapshot, to_send, unread, here, memory_, shard_.pool(), now);
    if (made) made = demux_.insert(tuple, *c);
    if (!made) {
        tcp::release(c->tcb);
        arena_.destroy(c);
        return Errno{made.error()};
    }
    c->tuple = tuple;
    c->path = path;
    c->owner = owner;
    c->ip_id = uint16_t(rng_.next());
    c->in_demux = true;
    c->steered = true;
    counters_.connections++;
    queue_output(*c);
    return c;
}

bool TcpEngine::counts(const Forgotten& f, Instant now) const {
    return f.until > now || f.empty_polls == shard_.empty_polls();
}

bool TcpEngine::was_forgotten(const Received& r, Instant now) const {
    for (const Forgotten& f : forgotten_)
        if (counts(f, now) && f.tuple.local == r.local && f.tuple.remote == r.remote) return true;
    return false;
}

bool TcpEngine::listener_was_forgotten(const Received& r, Instant now) const {
    for (const Forgotten& f : forgotten_)
        if (counts(f, now) && f.tuple.remote.port == 0 && f.tuple.local.port == r.local.port &&
            (f.tuple.local.addr.is_any() || f.tuple.local.addr == r.local.addr))
            return true;
    return false;
}

void TcpEngine::close_listener(TcpListener& l, Instant now) {
    if (l.detached) remember_as_forgotten(l.tuple, now);
    destroy_half_open(l, [](const TcpHalfOpen&) { return true; });
    detach_listener(l);
    demux_.remove(l.tuple);
    l.news_hook.unlink();
    l.owner = nullptr;
    if (l.state.fast_open > 0)
        demux_.for_each([&](TcpTarget& target) {
            if (target.kind != TcpTarget::Kind::connection) return;
            auto& c = static_cast<TcpConnection&>(target);
            if (c.fast_opener == &l) c.fast_opener = nullptr;
        });
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
    if (c.neighbor && c.tcb.rst_due) return;  // goes when its reset can, see pull()
    if (c.tcb.state == tcp::State::CLOSED)
        destroy(c);
    else if (c.tcb.state == tcp::State::TIME_WAIT)
        become_time_wait(c, now);
}

void TcpEngine::become_time_wait(TcpConnection& c, Instant now) {
    // The kernel's connection beside it is what keeps the tuple, and nothing can come late.
    if (c.neighbor) return destroy(c);
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
    close_text(c);
    if (std::exchange(c.steered, false)) unsteer(c.tuple);
}

void TcpEngine::destroy(TcpConnection& c) {
    if (c.listener && c.accept_hook.linked()) c.listener->state.accept_queue--;
    if (c.fast_opener) c.fast_opener->state.fast_open--;
    drop_deadline(c);
    c.output_hook.unlink();
    c.news_hook.unlink();
    c.young_hook.unlink();
    c.accept_hook.unlink();
    leave_tuple(c);
    tcp::release(c.tcb);
    if (c.orphan_token && sink_) sink_->tcp_orphan_gone(c.orphan_token);
    counters_.connections--;
    arena_.destroy(&c);
}

void TcpEngine::destroy(TcpHalfOpen& h) {
    drop_deadline(h);
    const FlowTuple tuple{h.record.local, h.record.remote};
    demux_.remove(tuple);
    if (h.steered) unsteer(tuple);
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
