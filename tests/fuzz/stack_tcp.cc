// A sequence of segments, calls and time steps into one connection of the TCP core. Input: one byte of settings, then
// records of [operation][arguments], see step(). Numbers are relative to what the connection expects, so that the fuzzer
// finds the windows. After every step the invariants of check() hold; at the end all memory is back.
#include <algorithm>
#include <cstring>
#include <optional>

#include "base/arena.h"
#include "fuzz/fuzz_check.h"
#include "pkt/pool.h"
#include "stack/tcp/steps.h"

using namespace vma;
using namespace vma::tcp;

namespace {

struct Input {
    const uint8_t* data;
    size_t size;
    bool empty() const { return size == 0; }
    uint8_t byte() {
        if (size == 0) return 0;
        --size;
        return *data++;
    }
    uint16_t word() {
        const uint16_t low = byte();
        return uint16_t(low | byte() << 8);
    }
};

struct World {
    Arena* arena = *Arena::create(size_t(64) << 20);
    PacketPool pool{*arena};
    TcpMemory memory{*arena};
};

struct Machine {
    World& w;
    Input& in;
    Tcb t{};
    TcpConfig cfg{};
    ListenState listener{};
    std::optional<HalfOpen> half{};
    IsnSecret secret{1, 2};
    FastOpenKeys keys{2, {{1, 2}, {3, 4}}};
    bool fast_open = false;
    Instant now{1000000000};
    std::optional<Seq> edge{};

    OpenParams params() {
        OpenParams p;
        p.local = {IpAddr::v4(10, 0, 0, 1), 4000};
        p.remote = {IpAddr::v4(10, 0, 0, 2), 80};
        p.iss = {0xfffffe00};
        p.memory = &w.memory;
        p.secret = &secret;
        p.fast_open = fast_open;
        p.fast_open_room = 1000;
        if (fast_open) p.cookie.len = 8;
        p.fast_open_keys = &keys;
        return p;
    }

    SegView segment() {
        SegView s;
        s.flags = in.byte();
        const uint8_t shape = in.byte();
        const auto offset = [&](uint8_t bits) -> int32_t {
            return bits == 0   ? 0
                   : bits == 1 ? int8_t(in.byte())
                               : int16_t(in.word()) * (bits == 2 ? 1 : 64);
        };
        s.seq = t.rcv.nxt + uint32_t(offset(shape & 3));
        if ((shape & 12) == 4)
            s.ack = t.snd.nxt;
        else
            s.ack = t.snd.una + uint32_t(offset(shape >> 2 & 3));
        s.wnd = (shape & 16) != 0 ? in.word() : uint16_t(0x4000);
        s.ecn = uint8_t(shape >> 5 & 3);
        const uint8_t options = in.byte();
        s.opt.sack_count = uint8_t(options & 3);
        for (unsigned i = 0; i < s.opt.sack_count; ++i) {
            const Seq left = t.snd.una + uint32_t(int32_t(int8_t(in.byte())) * 128);
            s.opt.sack[i] = {left, left + uint32_t(in.byte()) * 128};
        }
        if ((options & 4) != 0) {
            s.opt.has_timestamps = true;
            s.opt.ts_val = t.ts.recent + uint32_t(int8_t(in.byte()));
            s.opt.ts_ecr = t.ts.value(now) + uint32_t(int8_t(in.byte()));
        }
        if (s.has(kSyn)) {
            s.opt.has_mss = (options & 8) != 0;
            s.opt.mss = in.word();
            s.opt.has_wscale = (options & 16) != 0;
            s.opt.wscale = in.byte();
            s.opt.sack_permitted = (options & 32) != 0;
            const uint8_t cookie = in.byte();
            s.opt.has_fast_open = (cookie & 1) != 0;
            if ((cookie & 6) != 0) {
                const OpenParams p = params();
                const Cookie c =
                    vma::tcp::make_cookie(keys, cookie >> 3 & 1, p.remote.addr, p.local.addr);
                s.opt.fast_open_len = (cookie & 16) != 0 ? 4 : c.len;
                s.opt.fast_open = c.bytes;
            }
        }
        if ((options & 64) != 0) s.urg = in.word();
        s.payload_len = (options & 128) != 0 ? in.word() % 20000 : 0;
        if (s.payload_len > 0) {
            s.packet = w.pool.take(s.payload_len);
            if (!s.packet) {
                s.payload_len = 0;
                return s;
            }
            std::memset(s.packet->data, 'x', s.payload_len);
            s.packet->len = s.payload_len;
            if (s.payload_len > 3000) s.gso_size = 1460;
        }
        return s;
    }

    void arrive(SegView s) {
        Actions a;
        if (t.state != State::CLOSED || t.memory != nullptr) {
            segment_arrives(t, s, now, a);
            return;
        }
        if (!half) {
            const ListenVerdict v = on_syn(listener, cfg, s, params(), now, a);
            if (v.kind == ListenVerdict::fast_open) {
                open_fast(t, v.record, cfg, w.memory, s, v.newer, now, a);
                return;
            }
            if (v.kind == ListenVerdict::half_open || v.kind == ListenVerdict::established)
                half = v.record;
            if (v.kind != ListenVerdict::established) return;
        }
        const HalfOpenVerdict v = segment_arrives(*half, listener, cfg, s, now, a);
        if (v == HalfOpenVerdict::keep) return;
        if (v == HalfOpenVerdict::establish) {
            establish(t, *half, cfg, w.memory, now);
            segment_arrives(t, s, now, a);
        }
        half.reset();
    }

    void pull() {
        SegmentPlan p;
        unsigned n = 0;
        while (next_segment(t, now, p)) {
            FUZZ_CHECK(++n < 20000);
            uint32_t bytes = 0;
            for (unsigned i = 0; i < p.slice_count; ++i) bytes += uint32_t(p.slices[i].iov_len);
            FUZZ_CHECK(bytes == p.payload_len);
            FUZZ_CHECK(tcp_options_size(p.head.opt) <= 40);
        }
    }

    void pass(Duration d) {
        const Instant end = now + d;
        for (int i = 0, paced = 0; i < 200 && paced < 20000;) {
            Instant due = deadline(t);
            if (half) due = std::min(due, deadline(*half));
            if (due > end) break;
            now = std::max(now, due);
            ++(t.timers.pace_wait && due == t.timers.pace_at ? paced : i);
            Actions a;
            if (half && deadline(*half) <= now) {
                if (deadline_reached(*half, cfg, now, a) == HalfOpenVerdict::remove) half.reset();
            }
            deadline_reached(t, now, a);
            pull();
            // What is due makes progress: the next deadline is later, or one of several timers is off.
            FUZZ_CHECK(i < 200 || d > Duration::seconds(10));
        }
        now = std::max(now, end);
    }

    void check() {
        uint32_t sacked = 0, lost = 0, again = 0, waiting = 0;
        for (TxRange* r = t.board.head; r != nullptr; r = r->next) {
            FUZZ_CHECK(r->start < r->end);
            FUZZ_CHECK(r->next == nullptr || r->next->start == r->end);
            if (r->sacked) sacked += r->len();
            if (r->lost) lost += r->len();
            if (r->retransmitted) again += r->len();
            if (r->lost && !r->retransmitted) waiting += r->len();
            FUZZ_CHECK(!(r->sacked && (r->lost || r->retransmitted)));
        }
        FUZZ_CHECK(sacked == t.board.sacked && lost == t.board.lost);
        FUZZ_CHECK(again == t.board.retransmitted && waiting == t.board.waiting);
        if (t.state < State::ESTABLISHED || t.state == State::TIME_WAIT) return;
        FUZZ_CHECK(t.snd.una <= t.snd.nxt && t.snd.nxt <= t.write_seq() + 1);
        FUZZ_CHECK(!edge || t.rcv.adv >= *edge);
        edge = t.rcv.adv;
        FUZZ_CHECK(t.cc.cwnd >= 48 && t.snd.mss >= 48);
        FUZZ_CHECK(t.in.charge() + t.ooo.charge() <= 3 * t.rcv.buffer + 400000);
        // Something in flight is always watched over.
        FUZZ_CHECK(t.flight() == 0 || t.timers.kind != Rtx::none);
    }

    void step() {
        static const char text[40000] = {};
        static char sink[70000];
        Actions a;
        const uint8_t op = in.byte();
        switch (op & 15) {
            case 0:
            case 1:
            case 2:
            case 3:
                arrive(segment());
                break;
            case 4:
                pass(Duration::millis(in.byte()));
                break;
            case 5:
                pass(Duration::millis(int64_t(in.word()) * 4));
                break;
            case 6:
                now = std::max(now, std::min(deadline(t), now + Duration::seconds(200)));
                deadline_reached(t, now, a);
                break;
            case 7:
                write(t, text, in.word() % sizeof text, now, a);
                break;
            case 8:
                read(t, sink, in.word(), now, a);
                break;
            case 9:
                shutdown_write(t, now, a);
                break;
            case 10:
                if (t.memory) close(t, now, a);
                break;
            case 11:
                if (t.memory) path_too_big(t, t.snd.una + in.byte(), in.word(), 40, a);
                break;
            case 12:
                t.cfg.nodelay = (op & 16) != 0;
                t.cfg.cork = (op & 32) != 0;
                t.cfg.keepalive = (op & 64) != 0;
                t.cfg.pacing_rate = (op & 128) != 0 ? 1000000 : 0;
                if (t.memory) config_changed(t, now, a);
                break;
            case 13:
                if (t.memory) mark_urgent(t);
                break;
            case 14:
                set_buffers(t, in.word(), 1 + in.word(), (op & 16) != 0);
                break;
            default:
                // The expected ACK, which gets a connection far without luck.
                if (t.memory != nullptr) {
                    SegView s;
                    s.flags = kAck;
                    s.seq = t.rcv.nxt;
                    s.ack = t.snd.nxt;
                    s.wnd = 0x7fff;
                    arrive(std::move(s));
                }
                break;
        }
        pull();
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static World* world = new World;
    Input in{data, size};
    {
        Machine m{*world, in};
        const uint8_t settings = in.byte();
        m.cfg.timestamps = (settings & 1) != 0;
        m.cfg.sack = (settings & 2) == 0;
        m.cfg.ecn = uint8_t((settings & 4) != 0 ? 1 : 2);
        m.cfg.cc = CcKind(settings >> 3 & 3);  // 3: BBR
        m.cfg.max_gso_bytes = (settings & 32) != 0 ? 65536 : 0;
        m.cfg.receive_buffer = 30000;
        m.cfg.receive_buffer_max = 200000;
        m.cfg.send_buffer_max = 300000;
        m.cfg.mtu_probing = (settings & 64) != 0 ? 2 : 0;
        m.cfg.notsent_lowat = (settings & 64) != 0 ? 20000 : UINT32_MAX;
        m.listener.backlog = 4;
        m.listener.fast_open_limit = 4;
        if ((settings & 128) != 0) {
            m.listener.half_open = (settings & 32) != 0 ? 9 : 0;  // 9: cookies
        } else {
            m.fast_open = (settings & 64) != 0;
            connect(m.t, m.params(), m.cfg, m.now);
            if (m.fast_open) {
                Actions a;
                write(m.t, "text of the first segment", 25, m.now, a);
            }
            m.pull();
        }
        for (int i = 0; i < 2000 && !in.empty(); ++i) {
            m.step();
            m.check();
        }
        release(m.t);
    }
    FUZZ_CHECK(world->memory.chunks_out() == 0 && world->memory.ranges_out() == 0);
    FUZZ_CHECK(world->pool.counters().in_use == 0);
    return 0;
}
