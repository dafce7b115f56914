// Two hosts with one TCP connection and a bad link between them, in virtual time. Seeded: same seed, same run.
#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "base/rng.h"
#include "stack/isn.h"
#include "support/tcp_peer.h"

namespace vma::tcp {

struct LinkParams {
    uint64_t seed = 1;
    uint32_t loss_permille = 0, reorder_permille = 0, duplicate_permille = 0, corrupt_permille = 0;
    Duration rtt = Duration::millis(1);
    uint64_t bytes_per_second = 125000000;
    uint32_t queue_bytes = 400000;  // bottleneck buffer, drop-tail
};

// One end: a client or a server with at most one connection, an application that writes `to_send` and reads all.
struct Host {
    TcpWorld world;
    TcpConfig cfg;
    IsnSecret secret{1, 2};
    Endpoint self, peer;
    bool server = false;
    Tcb t;
    bool open = false;  // t is in use
    std::optional<HalfOpen> half;
    std::string to_send, received;
    size_t written = 0;
    uint32_t read_chunk = 1 << 20;
    bool close_when_done = true, closed = false, eof = false;
    uint32_t events = 0;
    int error = 0;
    Instant heard;            // of the last text read, zero: none yet
    Duration longest_gap{0};  // between two of them

    ~Host() { release(t); }
};

class TcpLink {
  public:
    TcpLink(const LinkParams& p) : params_(p), rng_(p.seed) {
        client.self = server.peer = {IpAddr::v4(10, 0, 0, 1), 40000};
        client.peer = server.self = {IpAddr::v4(10, 0, 0, 2), 80};
        server.server = true;
    }

    void start() {
        OpenParams open{
            client.self, client.peer, initial_seq(client.secret, client.self, client.peer, now),
            timestamp_offset(client.secret, client.self, client.peer), client.world.memory.get()};
        connect(client.t, open, client.cfg, now);
        client.open = true;
        output(client);
    }

    // True when both ends are closed (or the client in TIME_WAIT) and everything was read, before `limit`.
    bool run(Duration limit) {
        const Instant end = now + limit;
        for (uint64_t steps = 0;; ++steps) {
            if (steps > 20000000) return false;
            if (finished()) return true;
            Instant next = std::min({host_deadline(client), host_deadline(server),
                                     wire_.empty() ? Instant::never() : wire_.begin()->first});
            if (next.is_never() || next > end) return false;
            now = std::max(now, next);
            if (!wire_.empty() && wire_.begin()->first <= now) {
                Flying f = std::move(wire_.begin()->second);
                wire_.erase(wire_.begin());
                deliver(f.to_server ? server : client, f.seg);
            }
            expire(client);
            expire(server);
        }
    }
    bool finished() const { return done(client) && done(server); }

    Host client, server;
    Instant now{1000000000};
    uint64_t wire_segments = 0, dropped = 0;

  private:
    struct Flying {
        bool to_server;
        Seg seg;
    };

    static bool done(const Host& h) {
        return (h.open || h.error) && h.eof && h.closed &&
               (h.t.state == State::CLOSED || h.t.state == State::TIME_WAIT);
    }
    static Instant host_deadline(const Host& h) {
        Instant d = h.open ? deadline(h.t) : Instant::never();
        if (h.t.state == State::TIME_WAIT) d = Instant::never();
        if (h.half) d = std::min(d, deadline(*h.half));
        return d;
    }

    void expire(Host& h) {
        Actions a;
        if (h.half && deadline(*h.half) <= now) {
            if (deadline_reached(*h.half, h.cfg, now, a) == HalfOpenVerdict::remove) h.half.reset();
            if (a.has_reply) send(h, out_seg(a.reply));
        }
        if (h.open && deadline(h.t) <= now && h.t.state != State::TIME_WAIT) {
            Actions b;
            deadline_reached(h.t, now, b);
            application(h, b);
        }
    }

    void deliver(Host& h, const Seg& s) {
        SegView v = in_seg(*h.world.pool, s);
        Actions a;
        if (!h.open && h.server) {
            ListenState ls;
            ls.half_open = h.half ? 1 : 0;
            ls.backlog = 16;
            if (!h.half) {
                OpenParams open{h.self, h.peer, initial_seq(h.secret, h.self, h.peer, now),
                                timestamp_offset(h.secret, h.self, h.peer), h.world.memory.get()};
                ListenVerdict lv = on_syn(ls, h.cfg, v, open, now, a);
                if (lv.kind == ListenVerdict::half_open) h.half = lv.record;
                if (a.has_reply) send(h, out_seg(a.reply));
                return;
            }
            const HalfOpenVerdict hv = segment_arrives(*h.half, ls, h.cfg, v, now, a);
            if (a.has_reply) send(h, out_seg(a.reply));
            if (hv == HalfOpenVerdict::keep) return;
            if (hv == HalfOpenVerdict::establish) {
                establish(h.t, *h.half, h.cfg, *h.world.memory, now);
                h.open = true;
            }
            h.half.reset();
            if (!h.open) return;
        }
        Actions b;
        segment_arrives(h.t, v, now, b);
        if (b.has_reply) send(h, out_seg(b.reply));
        application(h, b);
    }

    // Reads and writes what it can, then sends.
    void application(Host& h, Actions& a) {
        h.events |= a.events;
        if (a.error) h.error = a.error;
        if (a.has(kFailed)) h.closed = h.eof = true;
        while (h.t.in.bytes > 0) {
            char buf[65536];
            Actions b;
            const size_t n = read(h.t, buf, std::min<size_t>(sizeof(buf), h.read_chunk), now, b);
            h.received.append(buf, n);
            if (h.heard.ns != 0) h.longest_gap = std::max(h.longest_gap, now - h.heard);
            h.heard = now;
        }
        if (at_eof(h.t)) h.eof = true;
        if (h.t.state == State::ESTABLISHED || h.t.state == State::CLOSE_WAIT) {
            while (h.written < h.to_send.size()) {
                Actions b;
                const size_t n =
                    write(h.t, h.to_send.data() + h.written, h.to_send.size() - h.written, now, b);
                h.written += n;
                if (n == 0) break;
            }
            if (h.written == h.to_send.size() && !h.closed && h.close_when_done) {
                Actions b;
                shutdown_write(h.t, now, b);
                h.closed = true;
            }
        }
        output(h);
    }

    void output(Host& h) {
        SegmentPlan p;
        for (int i = 0; i < 100000 && next_segment(h.t, now, p); ++i) {
            Seg s = out_seg(p);
            if (s.gso_size == 0) {
                send(h, s);
                continue;
            }
            // The device cuts the super-frame: PSH and FIN on the last piece only.
            for (size_t at = 0; at < s.text.size(); at += s.gso_size) {
                Seg piece = s;
                piece.gso_size = 0;
                piece.seq += uint32_t(at);
                piece.text = s.text.substr(at, s.gso_size);
                if (at + s.gso_size < s.text.size()) piece.flags &= uint8_t(~(kPsh | kFin));
                send(h, piece);
            }
        }
    }

    void send(Host& from, const Seg& s) {
        ++wire_segments;
        const bool to_server = &from == &client;
        // The bottleneck: serialisation and a finite queue.
        Instant& busy = busy_[to_server];
        const uint64_t bytes = s.text.size() + 54;
        const Duration wait = busy > now ? busy - now : Duration{0};
        if (uint64_t(double(wait.ns) * 1e-9 * double(params_.bytes_per_second)) >
            params_.queue_bytes) {
            ++dropped;
            return;
        }
        busy = std::max(busy, now) +
               Duration::nanos(int64_t(bytes * 1000000000ull / params_.bytes_per_second) + 1);
        if (rng_.chance(params_.loss_permille + params_.corrupt_permille, 1000)) {
            ++dropped;
            return;
        }
        Instant at = busy + params_.rtt / 2;
        if (rng_.chance(params_.reorder_permille, 1000))
            at = at + params_.rtt / 2 + Duration::micros(rng_.below(2000));
        wire_.emplace(at, Flying{to_server, s});
        if (rng_.chance(params_.duplicate_permille, 1000))
            wire_.emplace(at + Duration::micros(rng_.below(3000)), Flying{to_server, s});
    }

    LinkParams params_;
    Rng rng_;
    std::multimap<Instant, Flying> wire_;
    Instant busy_[2];
};

}  // namespace vma::tcp
