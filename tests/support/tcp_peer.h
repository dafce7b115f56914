// A Tcb under test and a forged peer: segments are written by hand, time is a variable. Our numbers start at 1000 (first
// byte 1001), the peer's at 5000 (first byte 5001).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/rng.h"
#include "pkt/pool.h"
#include "stack/tcp/steps.h"
#include "stack/tcp/tcp.h"

namespace vma::tcp {

struct TcpWorld {
    Arena* arena;
    std::unique_ptr<PacketPool> pool;
    std::unique_ptr<TcpMemory> memory;

    TcpWorld() {
        auto made = Arena::create(size_t(256) << 20);
        if (!made.ok()) throw std::runtime_error("arena");
        arena = made.value();
        pool = std::make_unique<PacketPool>(*arena);
        memory = std::make_unique<TcpMemory>(*arena);
    }
    ~TcpWorld() {
        // Every block and frame that connections took must be back.
        EXPECT_EQ(memory->chunks_out(), 0u);
        EXPECT_EQ(memory->ranges_out(), 0u);
        EXPECT_EQ(pool->counters().in_use, 0u);
        pool.reset();
        Arena::unmap(arena);
    }
    TcpWorld(const TcpWorld&) = delete;
    TcpWorld& operator=(const TcpWorld&) = delete;
};

// A segment with its bytes, as it would be on the wire.
struct Seg {
    uint32_t seq = 0, ack = 0;
    uint8_t flags = kAck;
    std::string text{};
    uint16_t wnd = 60000;
    TcpOptions opt{};
    uint16_t urg = 0;
    uint16_t gso_size = 0;
    uint8_t ecn = 0;  // IP codepoint
    bool retransmission = false, probe = false;

    bool has(uint8_t f) const { return (flags & f) == f; }
    uint32_t len() const {
        return uint32_t(text.size()) + ((flags & kSyn) ? 1 : 0) + ((flags & kFin) ? 1 : 0);
    }
};

inline Seg out_seg(const SegmentHead& h) {
    Seg s;
    s.seq = h.seq.v;
    s.ack = h.ack.v;
    s.flags = h.flags;
    s.wnd = h.wnd;
    s.urg = h.urg;
    s.opt = h.opt;
    s.ecn = h.ect ? 2 : 0;
    return s;
}
inline Seg out_seg(const SegmentPlan& p) {
    Seg s = out_seg(p.head);
    for (unsigned i = 0; i < p.slice_count; ++i)
        s.text.append(static_cast<const char*>(p.slices[i].iov_base), p.slices[i].iov_len);
    EXPECT_EQ(s.text.size(), p.payload_len);
    s.gso_size = p.gso_size;
    s.retransmission = p.retransmission;
    s.probe = p.probe;
    return s;
}

// The parsed form, with the text in a frame behind 54 bytes of headers.
inline SegView in_seg(PacketPool& pool, const Seg& s) {
    SegView v;
    v.seq = {s.seq};
    v.ack = {s.ack};
    v.wnd = s.wnd;
    v.urg = s.urg;
    v.flags = s.flags;
    v.opt = s.opt;
    v.ecn = s.ecn;
    v.gso_size = s.gso_size;
    v.payload_len = uint32_t(s.text.size());
    if (!s.text.empty()) {
        v.payload_offset = 54;
        v.packet = pool.take(54 + s.text.size());
        if (!v.packet) throw std::runtime_error("pool");
        std::memcpy(v.packet->data + 54, s.text.data(), s.text.size());
        v.packet->len = uint32_t(54 + s.text.size());
    }
    return v;
}

struct Conn {
    TcpWorld world;
    Tcb t;
    Instant now{1000000000};
    TcpConfig cfg;
    Actions last;          // of the last entry
    uint32_t seen = 0;     // all events since the start or clear_seen()
    bool stamps = false;   // peer uses timestamps
    uint32_t tsval = 100;  // the peer's clock

    Conn() {
        cfg.timestamps = false;
        cfg.receive_buffer = cfg.receive_buffer_max = 60000;
    }
    ~Conn() { release(t); }

    Actions& fresh() {
        last = {};
        return last;
    }
    void note() { seen |= last.events; }

    OpenParams params(uint32_t iss = 1000) {
        OpenParams p;
        p.local = {IpAddr::v4(10, 0, 0, 1), 4000};
        p.remote = {IpAddr::v4(10, 0, 0, 2), 80};
        p.iss = {iss};
        p.memory = world.memory.get();
        return p;
    }

    Verdict recv(Seg s, bool slow = false) {
        if (stamps && !s.opt.has_timestamps) {
            s.opt.has_timestamps = true;
            s.opt.ts_val = tsval;
            s.opt.ts_ecr = t.ts.value(now);
        }
        SegView v = in_seg(*world.pool, s);
        const Verdict verdict =
            slow ? segment_arrives_slow(t, v, now, fresh()) : segment_arrives(t, v, now, fresh());
        note();
        return verdict;
    }
    std::optional<Seg> pull() {
        SegmentPlan p;
        if (!next_segment(t, now, p)) return std::nullopt;
        return out_seg(p);
    }
    std::vector<Seg> pull_all() {
        std::vector<Seg> all;
        while (auto s = pull()) {
            all.push_back(*s);
            if (all.size() > 10000) {
                ADD_FAILURE() << "output does not end";
                break;
            }
        }
        return all;
    }
    // Runs every deadline up to now + d; segments that became due are appended to *out.
    void pass(Duration d, std::vector<Seg>* out = nullptr) {
        const Instant end = now + d;
        for (int guard = 0; deadline(t) <= end; ++guard) {
            if (guard > 100000) {
                ADD_FAILURE() << "a deadline makes no progress";
                break;
            }
            now = std::max(now, deadline(t));
            deadline_reached(t, now, fresh());
            note();
            for (auto& s : pull_all())
                if (out) out->push_back(s);
        }
        now = end;
    }
    size_t send(const std::string& s) {
        const size_t n = write(t, s.data(), s.size(), now, fresh());
        note();
        return n;
    }
    std::string receive(size_t most = 1 << 20) {
        std::string s(std::min<size_t>(most, std::max(unread_bytes(t), 1u)), 0);
        s.resize(read(t, s.data(), s.size(), now, fresh()));
        note();
        return s;
    }

    void syn_sent() {
        connect(t, params(), cfg, now);
        auto syn = pull();
        ASSERT_TRUE(syn && syn->flags == kSyn);
    }
    // mss: what the peer's SYN says. After this nothing is pending.
    void established(uint16_t mss = 1460, uint16_t wnd = 60000, int scale = -1, bool sack = true) {
        syn_sent();
        Seg s{5000, 1001, kSyn | kAck, "", wnd};
        s.opt.has_mss = true;
        s.opt.mss = mss;
        s.opt.sack_permitted = sack;
        if (scale >= 0) {
            s.opt.has_wscale = true;
            s.opt.wscale = uint8_t(scale);
        }
        recv(s);
        ASSERT_EQ(t.state, State::ESTABLISHED);
        auto ack = pull_all();
        ASSERT_EQ(ack.size(), 1u);
        ASSERT_EQ(ack[0].ack, 5001u);
        seen = 0;
    }
    void fin_wait_1() {
        established();
        shutdown_write(t, now, fresh());
        auto fin = pull_all();
        ASSERT_EQ(fin.size(), 1u);
        ASSERT_EQ(t.state, State::FIN_WAIT_1);
        seen = 0;
    }
    void fin_wait_2() {
        fin_wait_1();
        recv({5001, 1002});
        ASSERT_EQ(t.state, State::FIN_WAIT_2);
        pull_all();
        seen = 0;
    }
    void close_wait() {
        established();
        recv({5001, 1001, kFin | kAck});
        ASSERT_EQ(t.state, State::CLOSE_WAIT);
        pull_all();
        seen = 0;
    }
    void closing() {
        fin_wait_1();
        recv({5001, 1001, kFin | kAck});
        ASSERT_EQ(t.state, State::CLOSING);
        pull_all();
        seen = 0;
    }
    void last_ack() {
        close_wait();
        shutdown_write(t, now, fresh());
        pull_all();
        ASSERT_EQ(t.state, State::LAST_ACK);
        seen = 0;
    }
    void time_wait() {
        fin_wait_2();
        recv({5001, 1002, kFin | kAck});
        ASSERT_EQ(t.state, State::TIME_WAIT);
        pull_all();
        seen = 0;
    }
    void syn_received() {  // simultaneous open
        syn_sent();
        Seg s{5000, 0, kSyn};
        s.opt.has_mss = true;
        s.opt.mss = 1460;
        recv(s);
        ASSERT_EQ(t.state, State::SYN_RECEIVED);
        auto out = pull_all();
        ASSERT_EQ(out.size(), 1u);
        ASSERT_EQ(out[0].flags, kSyn | kAck);
        seen = 0;
    }
};

}  // namespace vma::tcp
