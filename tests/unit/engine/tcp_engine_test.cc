// TcpEngine under many strangers: TIME-WAIT by the ten thousands, a flood of SYNs, a path that becomes narrower. Frames by
// hand, time by hand.
#include "engine/tcp_engine.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "base/own_fd.h"
#include "engine/network_monitor.h"
#include "engine/shard.h"
#include "engine/tcp_waiting.h"
#include "stack/tcp/segment_io.h"
#include "support/quiet_ring.h"
#include "wire/checksum.h"
#include "wire/ipv4.h"

namespace vma {
namespace {

using namespace tcp;

struct Sent {
    TcpHeader tcp;
    TcpOptions opt;
    uint32_t payload = 0;
};

// Keeps the heads of what was sent.
class TestRing final : public QuietRing {
  public:
    explicit TestRing(bool pushes_back = false) {
        caps_.mtu = 1500;
        caps_.tx_checksum = true;
        caps_.pushes_back = pushes_back;
        caps_.has_neighbors = !pushes_back;
    }
    std::deque<Sent> sent;
    bool room = true;
    int refuse = 0;  // an errno: nobody is there to take a frame
    std::vector<FlowKey> steered;

    bool has_room(const FlowKey&) const override { return room; }
    unsigned send(std::span<const TxFrame> frames, int* why) override {
        if (refuse) *why = refuse;
        if (refuse) return 0;
        for (const TxFrame& f : frames) {
            const auto view = parse_tcp(f.head.subspan(34));
            Sent s;
            s.tcp = view->header;
            parse_tcp_options(view->options, s.opt);
            s.payload = f.payload_len;
            sent.push_back(s);
        }
        return unsigned(frames.size());
    }
    Status steer(const FlowKey& key, int) override {
        steered.push_back(key);
        return {};
    }
    void unsteer(const FlowKey& key) override { std::erase(steered, key); }
};

constexpr Endpoint kUs{IpAddr::v4(10, 9, 9, 1), 80};

class EngineTest : public testing::Test {
  protected:
    void SetUp() override {
        auto arena = Arena::create(Arena::kDefaultReserve, &memory_);
        ASSERT_TRUE(arena.ok());
        arena_ = *arena;
        pool_ = arena_->make<PacketPool>(*arena_, PoolLimits{});
        ring_ = make_ring();
        Shard::Parts parts;
        parts.arena = arena_;
        parts.pool = pool_;
        parts.ring = ring_;
        parts.secret = 1;
        parts.secret2 = 2;
        shard_ = Shard::make(parts);
        ASSERT_NE(shard_, nullptr);
        auto monitor = NetworkMonitor::of_this_namespace();
        ASSERT_TRUE(monitor.ok());
        monitor_ = *monitor;
        config_.timestamps = false;
    }
    void TearDown() override { shard_->close_ring(); }

    virtual TestRing* make_ring() { return new TestRing; }
    TcpEngine& engine() { return shard_->tcp(); }
    TcpListener* listen(uint32_t backlog) {
        const auto l = engine().listen(kUs, config_, backlog, *monitor_, this);
        EXPECT_TRUE(l.ok());
        return *l;
    }
    // The connection of `from`, accepted; `ours` becomes our next number.
    TcpConnection* open(TcpListener& l, const Endpoint& from, Seq& ours) {
        arrive(from, kSyn, Seq{1}, Seq{0});
        ours = last().tcp.seq + 1;
        arrive(from, kAck, Seq{2}, ours);
        return engine().accept(l, this);
    }
    // A segment from `from` to us.
    void arrive(const Endpoint& from, SegmentHead head, uint32_t text = 0) {
        uint8_t bytes[128];
        const uint32_t size = write_head(head, from.port, kUs.port, ByteSpan(bytes, sizeof bytes));
        Packet p = pool_->take(54 + 60 + text);
        ASSERT_TRUE(bool(p));
        std::memset(p->data, 0, 14);
        store_be16(p->data + 12, 0x0800);
        Ipv4Header ip;
        ip.src = from.addr.v4_host();
        ip.dst = kUs.addr.v4_host();
        ip.total_len = uint16_t(20 + size + text);
        ip.ttl = 64;
        ip.protocol = IPPROTO_TCP;
        emit_ipv4(ip, ByteSpan(p->data + 14, 20));
        std::memcpy(p->data + 34, bytes, size);
        std::memset(p->data + 34 + size, 'x', text);
        p->len = 34 + size + text;
        p->meta.checksum_good = true;
        engine().input(std::move(p), now_);
        engine().flush(now_);
    }
    void arrive(const Endpoint& from, uint8_t flags, Seq seq, Seq ack, uint32_t text = 0) {
        SegmentHead h;
        h.flags = flags;
        h.seq = seq;
        h.ack = ack;
        h.wnd = 60000;
        if (flags & kSyn) {
            h.opt.has_mss = true;
            h.opt.mss = 1460;
        }
        arrive(from, h, text);
    }
    // ICMP: our segment with this number to `to` does not fit.
    void too_big(const Endpoint& to, Seq seq, uint16_t mtu) {
        constexpr uint32_t kInner = 20 + 8;
        Packet p = pool_->take(14 + 20 + 8 + kInner);
        ASSERT_TRUE(bool(p));
        std::memset(p->data, 0, 14 + 20 + 8 + kInner);
        store_be16(p->data + 12, 0x0800);
        Ipv4Header outer;
        outer.src = IpAddr::v4(10, 9, 9, 254).v4_host();
        outer.dst = kUs.addr.v4_host();
        outer.total_len = uint16_t(20 + 8 + kInner);
        outer.ttl = 64;
        outer.protocol = IPPROTO_ICMP;
        emit_ipv4(outer, ByteSpan(p->data + 14, 20));
        uint8_t* icmp = p->data + 34;
        icmp[0] = 3, icmp[1] = 4;
        store_be16(icmp + 6, mtu);
        Ipv4Header inner;
        inner.src = kUs.addr.v4_host();
        inner.dst = to.addr.v4_host();
        inner.total_len = 1500;
        inner.ttl = 60;
        inner.protocol = IPPROTO_TCP;
        emit_ipv4(inner, ByteSpan(icmp + 8, 20));
        store_be16(icmp + 28, kUs.port);
        store_be16(icmp + 30, to.port);
        store_be32(icmp + 32, seq.v);
        Checksum sum;
        sum.add(ByteView(icmp, 8 + kInner));
        store_be16(icmp + 2, sum.finish());
        p->len = 14 + 20 + 8 + kInner;
        engine().input(std::move(p), now_);
        engine().flush(now_);
    }
    Sent last() {
        Sent s;
        if (!ring_->sent.empty()) s = ring_->sent.back();
        ring_->sent.clear();
        return s;
    }
    static Endpoint stranger(uint32_t i) {
        return {IpAddr::v4(10, 9, uint8_t(10 + i / 50000), 2), uint16_t(1024 + i % 50000)};
    }
    // Runs the deadlines up to now + d.
    void pass(Duration d) {
        const Instant end = now_ + d;
        while (engine().next_deadline() <= end) {
            now_ = std::max(now_, engine().next_deadline());
            engine().run_deadlines(now_);
        }
        now_ = end;
        ring_->sent.clear();
    }

    OwnFd memory_;
    Arena* arena_ = nullptr;
    PacketPool* pool_ = nullptr;
    TestRing* ring_ = nullptr;
    Shard* shard_ = nullptr;
    std::shared_ptr<NetworkMonitor> monitor_;
    TcpConfig config_;
    Instant now_{1000000000};
};

// A connection that goes to the kernel has a flow of its own until it is gone here; under its listener's the kernel would
// get its segments as soon as it knows the tuple.
TEST_F(EngineTest, AnAcceptedConnectionGetsItsFlowBeforeItIsMoved) {
    TcpListener* l = listen(16);
    const Endpoint from = stranger(1);
    Seq ours;
    TcpConnection* c = open(*l, from, ours);
    ASSERT_NE(c, nullptr);
    const auto flows = [&] {
        return std::count_if(ring_->steered.begin(), ring_->steered.end(),
                             [&](const FlowKey& k) { return k.remote == from; });
    };
    EXPECT_EQ(flows(), 0);
    engine().own_flow(*c);
    EXPECT_EQ(flows(), 1);
    engine().own_flow(*c);
    EXPECT_EQ(flows(), 1) << "once";
    engine().forget(*c, now_);
    EXPECT_EQ(flows(), 0);
}

// Where nobody would rescue an accepted connection, its flow is what tells others of its peer: it gets one when it has lived from one look
// to the next.
TEST_F(EngineTest, AcceptedConnectionsGetFlowsInTime) {
    TcpListener* l = listen(16);
    Seq ours;
    const auto flows = [&] {
        return std::count_if(ring_->steered.begin(), ring_->steered.end(),
                             [](const FlowKey& k) { return k.connected(); });
    };
    EXPECT_FALSE(engine().has_young());
    TcpConnection* const gone = open(*l, stranger(1), ours);
    open(*l, stranger(2), ours);
    EXPECT_TRUE(engine().has_young());
    engine().own_flows(10);
    EXPECT_EQ(flows(), 0) << "too young";
    open(*l, stranger(3), ours);
    open(*l, stranger(4), ours);
    engine().forget(*gone, now_);
    engine().own_flows(10);
    EXPECT_EQ(flows(), 1);
    engine().own_flows(1);
    EXPECT_EQ(flows(), 2) << "one at a time";
    EXPECT_TRUE(engine().has_young());
    engine().own_flows(1);
    EXPECT_EQ(flows(), 3);
    EXPECT_FALSE(engine().has_young());
}

// What the ring had caught for it is never answered, however long the move to the kernel took or nobody looked at the ring:
// the RST would end the kernel's connection.
TEST_F(EngineTest, WhatWasCaughtBeforeAMoveIsNotAnswered) {
    class Count final : public TcpStrays {
      public:
        void stray(ByteView) override { count++; }
        unsigned count = 0;
    } strays;
    TcpListener* l = listen(16);
    const Endpoint from = stranger(1);
    Seq ours;
    TcpConnection* c = open(*l, from, ours);
    ASSERT_NE(c, nullptr);
    ring_->sent.clear();
    engine().forget(*c, now_);
    engine().divert_strays(&strays);
    for (int i = 0; i < 3; i++) {
        arrive(from, kAck, Seq{2}, ours, 10);
        now_ = now_ + Duration::seconds(2);
    }
    engine().divert_strays(nullptr);
    EXPECT_EQ(strays.count, 3u);
    arrive(from, kAck, Seq{12}, ours, 10);
    EXPECT_EQ(engine().counters().resets_sent, 0u);
    // Once the ring was found empty, what comes is new.
    EXPECT_EQ(shard_->poll(), 0u);
    arrive(from, kAck, Seq{12}, ours, 10);
    EXPECT_EQ(engine().counters().resets_sent, 1u);
}

// The same for a connection whose adoption did not come about.
TEST_F(EngineTest, WhatWasCaughtForARefusedAdoptionIsNotAnswered) {
    const FlowTuple tuple{kUs, stranger(1)};
    listen(16);  // which makes the monitor known
    ASSERT_TRUE(engine().take_flow(tuple, -1).ok());
    engine().release_flow(tuple, now_);
    EXPECT_TRUE(ring_->steered.empty());
    now_ = now_ + Duration::seconds(2);
    arrive(tuple.remote, kAck, Seq{2}, Seq{1}, 10);
    EXPECT_EQ(engine().counters().resets_sent, 0u);
}

// Each connection is closed by us first, so that the wait is ours: small records, answers as RFC 9293 says, all gone after
// a minute.
TEST_F(EngineTest, SixtyThousandInTimeWait) {
    constexpr uint32_t kCount = 60000;
    TcpListener* l = listen(16);
    const size_t before = arena_->in_use();
    for (uint32_t i = 0; i < kCount; ++i) {
        const Endpoint from = stranger(i);
        arrive(from, kSyn, Seq{i}, Seq{0});
        const Seq ours = last().tcp.seq + 1;
        arrive(from, kAck, Seq{i + 1}, ours);
        TcpConnection* c = engine().accept(*l, this);
        ASSERT_NE(c, nullptr) << i;
        Actions actions;
        close(c->tcb, now_, actions);
        engine().absorb(*c, actions, now_);
        engine().release_owner(*c, 0, now_);
        engine().flush(now_);
        ASSERT_TRUE(last().tcp.flags & kFin) << i;
        arrive(from, kFin | kAck, Seq{i + 1}, ours + 1);
        ASSERT_EQ(last().tcp.flags, kAck) << i;
        now_ = now_ + Duration::micros(10);
    }
    EXPECT_EQ(engine().counters().time_wait, kCount);
    EXPECT_EQ(engine().counters().connections, 0u);
    EXPECT_EQ(engine().memory().ranges_out() + engine().memory().chunks_out(), 0u);
    const size_t each = (arena_->in_use() - before) / kCount;
    EXPECT_LT(each, 320u) << "bytes per record, with its places in table and heap";
    // One of them: its FIN again is answered, an exact RST ends it, a SYN that is newer opens the tuple again.
    const Endpoint a = stranger(100), b = stranger(200), c = stranger(300);
    arrive(a, kFin | kAck, Seq{101}, Seq{0});
    EXPECT_EQ(last().tcp.flags, kAck);
    arrive(b, kRst, Seq{202}, Seq{0});
    EXPECT_EQ(engine().counters().time_wait, kCount - 1);
    arrive(c, kSyn, Seq{1000000}, Seq{0});
    EXPECT_EQ(last().tcp.flags, kSyn | kAck);
    EXPECT_EQ(engine().counters().half_open, 1u);
    pass(Duration::seconds(61));
    EXPECT_LE(engine().counters().time_wait,
              1u);  // the one whose FIN came again waits from then on
    pass(Duration::seconds(120));
    EXPECT_EQ(engine().counters().time_wait, 0u);
    EXPECT_EQ(engine().counters().half_open, 0u);
}

// Strangers' SYNs past the backlog cost nothing that stays, and one who means it gets in.
TEST_F(EngineTest, SynFloodKeepsMemoryFlat) {
    TcpListener* l = listen(64);
    for (uint32_t i = 0; i < 1000; ++i) arrive(stranger(i), kSyn, Seq{i}, Seq{0});
    const size_t full = arena_->in_use();
    const uint64_t half_open = engine().counters().half_open;
    EXPECT_LE(half_open, 66u);
    for (uint32_t i = 1000; i < 90000; ++i) arrive(stranger(i), kSyn, Seq{i}, Seq{0});
    EXPECT_EQ(engine().counters().half_open, half_open);
    EXPECT_EQ(arena_->in_use(), full);
    EXPECT_EQ(l->state.cookies_sent, 90000 - half_open);
    const Endpoint honest{IpAddr::v4(10, 9, 8, 7), 999};
    ring_->sent.clear();
    arrive(honest, kSyn, Seq{7000}, Seq{0});
    const Seq cookie = last().tcp.seq;
    arrive(honest, kAck, Seq{7001}, cookie + 1, 10);
    TcpConnection* c = engine().accept(*l, this);
    ASSERT_NE(c, nullptr);
    EXPECT_TRUE(c->tuple.remote == honest);
    EXPECT_EQ(unread_bytes(c->tcb), 10u);
    EXPECT_EQ(l->state.cookies_taken, 1u);
}

// What a router says about one connection holds for the others to that address, and for those that come.
// VMA_TCP_MAX_SYN_RATE: of strangers who knock; those who are inside, or half of it, are not counted.
TEST_F(EngineTest, AListenerTakesSoManyRequestsASecond) {
    TcpListener* const l = listen(16);
    l->syns.most = 3;
    const auto knock = [&](uint32_t first, uint32_t count) {
        for (uint32_t i = first; i < first + count; ++i) arrive(stranger(i), kSyn, Seq{1}, Seq{0});
        return engine().counters().half_open;
    };
    const auto dropped = [&] { return engine().drops().n[unsigned(DropReason::tcp_syn_rate)]; };
    EXPECT_EQ(knock(0, 5), 3u);
    EXPECT_EQ(dropped(), 2u);
    knock(0, 3);  // once more, as when an answer was lost
    EXPECT_EQ(dropped(), 2u);
    now_ = now_ + Duration::millis(999);
    EXPECT_EQ(knock(3, 1), 3u);
    now_ = now_ + Duration::millis(1);
    EXPECT_EQ(knock(3, 5), 6u);
    EXPECT_EQ(dropped(), 5u);
}

// VMA_TCP_TIMER_RESOLUTION_MSEC.
TEST_F(EngineTest, DeadlinesAreJoinedAtTheTick) {
    constexpr Duration kTick = Duration::millis(100);
    listen(16);
    const auto deadline_of = [&](uint32_t i) {
        arrive(stranger(i), kSyn, Seq{1}, Seq{0});
        return engine().next_deadline();
    };
    now_ = Instant{} + Duration::millis(1050);
    const Instant plain = deadline_of(0);
    EXPECT_NE(plain.ns % kTick.ns, 0);
    pass(plain - now_ + Duration::seconds(120));
    engine().set_tick(kTick);
    now_ = Instant{} + kTick * 10000 + Duration::millis(50);
    const Instant joined = deadline_of(1);
    EXPECT_EQ(joined.ns % kTick.ns, 0);
    EXPECT_GT(joined, now_);
    now_ = now_ + Duration::millis(20);
    EXPECT_EQ(deadline_of(2), joined);
}

TEST_F(EngineTest, PathMtuIsKeptPerAddress) {
    TcpListener* l = listen(16);
    const auto from = [](uint16_t port) { return Endpoint{IpAddr::v4(10, 9, 8, 7), port}; };
    const auto open = [&](const Endpoint& peer) -> TcpConnection* {
        arrive(peer, kSyn, Seq{100}, Seq{0});
        arrive(peer, kAck, Seq{101}, last().tcp.seq + 1);
        return engine().accept(*l, this);
    };
    TcpConnection* one = open(from(1));
    TcpConnection* two = open(from(2));
    TcpConnection* other = open({IpAddr::v4(10, 9, 8, 8), 1});
    ASSERT_TRUE(one && two && other);
    ASSERT_EQ(one->tcb.snd.mss, 1460u);
    Actions actions;
    write(one->tcb, "text", 4, now_, actions);
    engine().pull(*one, now_);
    too_big(from(1), one->tcb.snd.una, 1000);
    EXPECT_EQ(one->tcb.snd.mss, 960u);
    EXPECT_EQ(two->tcb.snd.mss, 960u);
    EXPECT_EQ(other->tcb.snd.mss, 1460u);
    EXPECT_EQ(open(from(3))->tcb.snd.mss, 960u);
    // A number that is not in flight is not believed.
    too_big(from(2), two->tcb.snd.una, 600);
    EXPECT_EQ(two->tcb.snd.mss, 960u);
    now_ = now_ + Duration::seconds(601);
    EXPECT_EQ(open(from(4))->tcb.snd.mss, 1460u);
}

// Fast Open through the engine: a cookie is asked for and given, text with it is there at once, the places are counted.
TEST_F(EngineTest, FastOpenOfAListener) {
    TcpListener* l = listen(16);
    l->fast_open_keys = {1, {{1, 2}, {0, 0}}};
    l->state.fast_open_limit = 2;
    SegmentHead syn;
    syn.flags = kSyn;
    syn.wnd = 60000;
    syn.opt.has_mss = syn.opt.has_fast_open = true;
    syn.opt.mss = 1460;
    const auto from = [](uint16_t port) { return Endpoint{IpAddr::v4(10, 9, 8, 7), port}; };
    arrive(from(1), syn);
    const Sent given = last();
    ASSERT_TRUE(given.opt.has_fast_open);
    ASSERT_EQ(given.opt.fast_open_len, kCookieBytes);
    syn.opt.fast_open_len = given.opt.fast_open_len;
    syn.opt.fast_open = given.opt.fast_open;
    for (uint16_t port = 2; port <= 4; ++port) arrive(from(port), syn, 100);
    EXPECT_EQ(l->state.fast_opens, 2u);
    EXPECT_EQ(l->state.fast_open_full, 1u);
    EXPECT_EQ(l->state.fast_open, 2u);
    TcpConnection* c = engine().accept(*l, this);
    ASSERT_NE(c, nullptr);
    EXPECT_EQ(c->tcb.state, State::SYN_RECEIVED);
    EXPECT_EQ(unread_bytes(c->tcb), 100u);
    // The end of the handshake and the end of the connection both free a place.
    arrive(from(2), kAck, Seq{101}, c->tcb.snd.nxt);
    EXPECT_EQ(c->tcb.state, State::ESTABLISHED);
    EXPECT_EQ(l->state.fast_open, 1u);
    arrive(from(3), kRst, Seq{101}, Seq{0});
    TcpConnection* dead = engine().accept(*l, this);
    ASSERT_NE(dead, nullptr);
    EXPECT_EQ(dead->tcb.state, State::CLOSED);
    engine().release_owner(*dead, 0, now_);
    EXPECT_EQ(l->state.fast_open, 0u);
    // A listener that goes does not leave its connections a dangling pointer.
    arrive(from(5), syn, 100);
    TcpConnection* orphan = engine().accept(*l, this);
    ASSERT_NE(orphan, nullptr);
    engine().close_listener(*l, now_);
    EXPECT_EQ(orphan->fast_opener, nullptr);
    arrive(from(5), kAck, Seq{101}, orphan->tcb.snd.nxt);
    EXPECT_EQ(orphan->tcb.state, State::ESTABLISHED);
}

// A ring of which a full one is a wait and not a loss, and where the process of the other end may vanish.
class SharedMemoryTest : public EngineTest {
  protected:
    TestRing* make_ring() override { return new TestRing(true); }
    // A connection that was made elsewhere, with `text` to send; held until release().
    TcpConnection* enter(const Endpoint& from, size_t text) {
        const FlowTuple tuple{kUs, from};
        EXPECT_TRUE(engine().take_flow(tuple, -1));
        const std::vector<uint8_t> bytes(text, 'x');
        Snapshot s;
        s.local = kUs;
        s.remote = from;
        s.state = State::ESTABLISHED;
        s.snd_una = s.snd_nxt = Seq{1000};
        s.snd_end = Seq{1000} + uint32_t(text);
        s.rcv_nxt = s.rcv_wup = Seq{5000};
        s.snd_wl1 = Seq{4999};
        s.snd_wnd = s.max_window = s.rcv_wnd = 60000;
        s.peer_mss = 1460;
        TcpPath path;
        path.resolved = true;
        const auto made = engine().adopt(tuple, s, {bytes.data(), bytes.size()}, {}, config_, path,
                                         *monitor_, this, now_);
        EXPECT_TRUE(made.ok());
        (*made)->held = true;
        engine().flush(now_);
        return *made;
    }
    size_t text_sent() const {
        size_t n = 0;
        for (const Sent& s : ring_->sent) n += s.payload;
        return n;
    }
    stats::Waiting waiting(const TcpConnection& c) {
        return waiting_for(*shard_, c, tcp::numbers(c.tcb, now_));
    }
    void all_gone() {
        engine().peers_gone([](const FlowTuple&) { return true; }, now_);
    }
    const Endpoint from_ = stranger(1);
};

TEST_F(SharedMemoryTest, NothingIsSentBeforeTheOtherEndIsThere) {
    TcpConnection* c = enter(from_, 3000);
    EXPECT_EQ(text_sent(), 0u);
    engine().release_hold(*c, now_);
    EXPECT_EQ(text_sent(), 3000u);
}

TEST_F(SharedMemoryTest, AFullRingIsAWaitAndNoLoss) {
    ring_->room = false;
    TcpConnection* c = enter(from_, 3000);
    engine().release_hold(*c, now_);
    EXPECT_EQ(text_sent(), 0u);
    EXPECT_EQ(c->tcb.snd.nxt, Seq{1000}) << "no segment was made";
    EXPECT_EQ(waiting(*c), stats::Waiting::ring);
    ring_->room = true;
    ASSERT_LE(engine().next_deadline(), now_ + Duration::millis(2));
    now_ = engine().next_deadline();
    engine().run_deadlines(now_);
    EXPECT_EQ(text_sent(), 3000u);
    EXPECT_EQ(engine().counters().frames_refused, 0u);
    EXPECT_EQ(waiting(*c), stats::Waiting::application);
}

TEST_F(SharedMemoryTest, WhoDiesInOrderEndsTheStream) {
    TcpConnection* c = enter(from_, 0);
    engine().release_hold(*c, now_);
    arrive(from_, kAck | kPsh, Seq{5000}, Seq{1000}, 20);
    all_gone();
    EXPECT_EQ(c->tcb.state, State::CLOSE_WAIT);
    EXPECT_TRUE(c->tcb.rcv.fin_done);
    EXPECT_EQ(unread_bytes(c->tcb), 20u);
    EXPECT_EQ(c->error, 0);
}

TEST_F(SharedMemoryTest, WhoDiesInTheMiddleOfSomethingResets) {
    TcpConnection* half_sent = enter(from_, 0);
    engine().release_hold(*half_sent, now_);
    arrive(from_, kAck, Seq{5000}, Seq{1000}, 20);  // no push: there was more
    TcpConnection* not_taken = enter(stranger(2), 100);
    engine().release_hold(*not_taken, now_);
    all_gone();
    EXPECT_EQ(half_sent->tcb.state, State::CLOSED);
    EXPECT_EQ(half_sent->error, ECONNRESET);
    EXPECT_EQ(not_taken->tcb.state, State::CLOSED);
    EXPECT_EQ(not_taken->error, ECONNRESET);
}

TEST_F(SharedMemoryTest, TextForADeadProcessFailsAndAcknowledgementsDoNot) {
    TcpConnection* c = enter(from_, 0);
    engine().release_hold(*c, now_);
    ring_->refuse = ENETDOWN;
    arrive(from_, kAck | kPsh, Seq{5000}, Seq{1000}, 20);
    arrive(from_, kAck | kPsh, Seq{5020}, Seq{1000}, 20);
    EXPECT_EQ(c->tcb.state, State::ESTABLISHED);
    tcp::Actions actions;
    const iovec text{const_cast<char*>("x"), 1};
    ASSERT_EQ(tcp::write(c->tcb, &text, 1, now_, actions), 1u);
    engine().absorb(*c, actions, now_);
    engine().flush(now_);
    EXPECT_EQ(c->tcb.state, State::CLOSED);
    EXPECT_EQ(c->error, ECONNRESET);
}

}  // namespace
}  // namespace vma
