// What the decoder accepts and what it does not.
#include "broker/protocol.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace vma::broker {
namespace {

tcp::Snapshot established() {
    tcp::Snapshot s;
    s.local = {IpAddr::v4(10, 0, 0, 2), 80};
    s.remote = {IpAddr::v4(10, 0, 0, 1), 40000};
    s.state = tcp::State::ESTABLISHED;
    s.snd_una = {0xfffffff0};  // across zero
    s.snd_nxt = s.snd_una + 100;
    s.snd_end = s.snd_una + 300;
    s.rcv_nxt = {5000};
    s.unread = 10;
    s.rcv_wup = {5000};
    s.rcv_wnd = 65535;
    s.peer_mss = 1460;
    s.scaling = s.sack = s.timestamps = true;
    s.snd_wscale = s.rcv_wscale = 7;
    s.srtt = Duration::micros(123);
    s.cwnd = 14600;
    return s;
}

Repair repair_of(const tcp::Snapshot& s) {
    Repair r;
    r.image.snapshot = to_wire(s);
    r.unacked = 100;
    r.unsent = 200;
    r.unread = 10;
    return r;
}

std::vector<uint8_t> packet(Op op, const void* body, size_t bytes) {
    Head head;
    head.op = op;
    head.bytes = uint32_t(bytes);
    head.serial = 9;
    std::vector<uint8_t> out(sizeof head + bytes);
    std::memcpy(out.data(), &head, sizeof head);
    if (bytes) std::memcpy(out.data() + sizeof head, body, bytes);
    return out;
}
template <class T>
std::vector<uint8_t> packet(Op op, const T& body) {
    return packet(op, &body, sizeof body);
}

int decoded(const std::vector<uint8_t>& bytes, unsigned fds) {
    Body body;
    return decode(bytes, fds, body).error();
}

TEST(BrokerProtocol, SnapshotComesBackAsItWent) {
    const tcp::Snapshot s = established();
    const auto back = from_wire(to_wire(s));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(back->local, s.local);
    EXPECT_EQ(back->remote, s.remote);
    EXPECT_EQ(back->snd_end, s.snd_end);
    EXPECT_EQ(back->srtt, s.srtt);
    EXPECT_EQ(back->cwnd, s.cwnd);
    // Every field of the wire form, by the wire form of what came back.
    const WireSnapshot one = to_wire(s), two = to_wire(*back);
    EXPECT_EQ(std::memcmp(&one, &two, sizeof one), 0);
}

TEST(BrokerProtocol, ImpossibleSnapshots) {
    const auto refused = [](auto&& change) {
        WireSnapshot w = to_wire(established());
        change(w);
        return from_wire(w).error();
    };
    EXPECT_EQ(refused([](WireSnapshot&) {}), 0);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.state = uint8_t(tcp::State::LISTEN); }), EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.state = uint8_t(tcp::State::TIME_WAIT); }), EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.state = 250; }), EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.local.port = 0; }), EINVAL);
    EXPECT_EQ(
        refused([](WireSnapshot& w) { w.remote.address[15] = 0, w.remote.address[12] = 0xe0; }),
        EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.local.address[0] = 1; }), EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.snd_wscale = 15; }), EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.flags = 255; }), EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.snd_nxt = w.snd_una - 1; }), EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.snd_nxt = w.snd_end + 1; }), EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.snd_end = w.snd_una + kMostQueueBytes + 1; }),
              EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.unread = kMostQueueBytes + 1; }), EINVAL);
    EXPECT_EQ(refused([](WireSnapshot& w) { w.peer_mss = 0; }), EINVAL);
}

TEST(BrokerProtocol, SizesMustAgreeWithTheNumbers) {
    Repair r = repair_of(established());
    EXPECT_EQ(decoded(packet(Op::restore, r), 2), 0);
    EXPECT_EQ(decoded(packet(Op::restore, r), 1), EPROTO) << "queues without a file";
    EXPECT_EQ(decoded(packet(Op::restore, r), 3), EPROTO);
    r.unacked++;
    EXPECT_EQ(decoded(packet(Op::restore, r), 2), EINVAL);
    r.unacked--, r.unread++;
    EXPECT_EQ(decoded(packet(Op::finish, r), 2), EINVAL);
    r.unread--, r.unsent = UINT32_MAX, r.unacked = 301;  // sums that overflow
    EXPECT_EQ(decoded(packet(Op::restore, r), 2), EINVAL);
}

TEST(BrokerProtocol, LengthsAndKinds) {
    const Repair r = repair_of(established());
    auto bytes = packet(Op::restore, r);
    bytes.push_back(0);
    EXPECT_EQ(decoded(bytes, 2), EPROTO);
    bytes.resize(bytes.size() - 2);
    EXPECT_EQ(decoded(bytes, 2), EPROTO);
    EXPECT_EQ(decoded({}, 0), EPROTO);
    EXPECT_EQ(decoded(std::vector<uint8_t>(sizeof(Head) - 1), 0), EPROTO);
    EXPECT_EQ(decoded(std::vector<uint8_t>(kMostMessage + 1), 0), EPROTO);
    EXPECT_EQ(decoded(packet(Op::none, nullptr, 0), 0), EPROTO);
    EXPECT_EQ(decoded(packet(Op::count, nullptr, 0), 0), EPROTO);
    EXPECT_EQ(decoded(packet(Op(60000), nullptr, 0), 0), EPROTO);
    auto other = packet(Op::leaving, nullptr, 0);
    EXPECT_EQ(decoded(other, 0), 0);
    EXPECT_EQ(decoded(other, 1), EPROTO) << "a descriptor that nobody asked for";
    other[4]++;  // version
    EXPECT_EQ(decoded(other, 0), EPROTO);
}

TEST(BrokerProtocol, Lists) {
    HeldList list;
    list.count = 2;
    for (auto& h : list.items) {
        h.connection = 0x7f0000001000;
        h.share = 0x7f0000002004;
        h.local = to_wire(established().local);
        h.remote = to_wire(established().remote);
    }
    EXPECT_EQ(decoded(packet(Op::hold, &list, HeldList::bytes(2)), 2), 0);
    EXPECT_EQ(decoded(packet(Op::hold, &list, HeldList::bytes(2)), 1), EPROTO);
    EXPECT_EQ(decoded(packet(Op::hold, &list, HeldList::bytes(3)), 2), EPROTO);
    EXPECT_EQ(decoded(packet(Op::drop, &list, HeldList::bytes(2)), 0), EINVAL) << "share is hold's";
    list.items[1].share = 1;
    EXPECT_EQ(decoded(packet(Op::hold, &list, HeldList::bytes(2)), 2), EINVAL);
    list.count = kMostFds + 1;
    EXPECT_EQ(decoded(packet(Op::hold, &list, HeldList::bytes(2)), 2), EPROTO);
    list.count = 0;
    EXPECT_EQ(decoded(packet(Op::hold, &list, HeldList::bytes(0)), 0), EPROTO);
}

TEST(BrokerProtocol, Watch) {
    Watch w;
    w.arena = 0x7f0000000000;
    w.reserve = 1 << 30;
    w.root = w.arena + 4096;
    w.ring_data = 0x7e0000000000;
    w.ring_bytes = 8 << 20;
    w.slot = 3;
    w.token = 17;
    w.ifindex = 2;
    EXPECT_EQ(decoded(packet(Op::watch, w), 1), 0);
    const auto refused = [&](auto&& change) {
        Watch x = w;
        change(x);
        return decoded(packet(Op::watch, x), 1);
    };
    EXPECT_EQ(refused([](Watch& x) { x.arena += 8; }), EINVAL);
    EXPECT_EQ(refused([](Watch& x) { x.reserve = UINT64_MAX & ~4095ull; }), EINVAL);
    EXPECT_EQ(refused([](Watch& x) { x.root = x.arena + x.reserve; }), EINVAL);
    EXPECT_EQ(refused([](Watch& x) { x.root = x.arena - 8; }), EINVAL);
    EXPECT_EQ(refused([](Watch& x) { x.ring_bytes = 3000; }), EINVAL);
    EXPECT_EQ(refused([](Watch& x) { x.slot = 0; }), EINVAL);
    EXPECT_EQ(refused([](Watch& x) { x.ring_data = 0; }), EINVAL) << "a size of nothing";
}

TEST(BrokerProtocol, OpenRing) {
    OpenRing r{2, 8 << 20};
    EXPECT_EQ(decoded(packet(Op::open_ring, r), 0), 0);
    EXPECT_EQ(decoded(packet(Op::open_ring, r), 1), EPROTO);
    const auto refused = [](int ifindex, uint32_t bytes) {
        return decoded(packet(Op::open_ring, OpenRing{ifindex, bytes}), 0);
    };
    EXPECT_EQ(refused(0, 8 << 20), EINVAL);
    EXPECT_EQ(refused(-1, 8 << 20), EINVAL);
    EXPECT_EQ(refused(2, 0), EINVAL);
    EXPECT_EQ(refused(2, kLeastLentBytes / 2), EINVAL);
    EXPECT_EQ(refused(2, (8 << 20) + 4096), EINVAL) << "not a power of two";
    EXPECT_EQ(refused(2, kMostLentBytes * 2), EINVAL);
    EXPECT_EQ(refused(2, kMostLentBytes), 0);
    auto bytes = packet(Op::open_ring, r);
    bytes.push_back(0);
    EXPECT_EQ(decoded(bytes, 0), EPROTO);
}

TEST(BrokerProtocol, ShowRing) {
    const auto refused = [](const ShowRing& r, unsigned fds = 1) {
        return decoded(packet(Op::show_ring, r), fds);
    };
    EXPECT_EQ(refused({3, 17, 2, 0}), 0);
    EXPECT_EQ(refused({3, 17, 2, 0}, 0), EPROTO) << "without a doorbell";
    EXPECT_EQ(refused({3, 17, 2, 0}, 2), EPROTO);
    EXPECT_EQ(refused({0, 17, 2, 0}), EINVAL);
    EXPECT_EQ(refused({kSlots, 17, 2, 0}), EINVAL);
    EXPECT_EQ(refused({3, 0, 2, 0}), EINVAL);
    EXPECT_EQ(refused({3, 17, 0, 0}), EINVAL);
    EXPECT_EQ(refused({3, 17, 2, 1}), EINVAL);
}

TEST(BrokerProtocol, Steering) {
    Steer s;
    s.local = to_wire(established().local);
    s.remote = to_wire(established().remote);
    s.slot = 3;
    s.gate = kGates - 1;
    s.gate_value = UINT32_MAX;
    s.protocol = 6;
    EXPECT_EQ(decoded(packet(Op::steer, s), 1), 0);
    EXPECT_EQ(decoded(packet(Op::steer, s), 0), EPROTO) << "without a twin";
    EXPECT_EQ(decoded(packet(Op::steer, s), 2), EPROTO);
    EXPECT_EQ(decoded(packet(Op::unsteer, s), 0), 0);
    EXPECT_EQ(decoded(packet(Op::unsteer, s), 1), EPROTO);
    EXPECT_TRUE(can_be_asked(s));
    const auto refused = [&](auto&& change) {
        Steer x = s;
        change(x);
        EXPECT_EQ(can_be_asked(x), decoded(packet(Op::unsteer, x), 0) == 0);
        return decoded(packet(Op::steer, x), 1);
    };
    EXPECT_EQ(refused([](Steer& x) { x.remote = {}; }), 0);
    EXPECT_EQ(refused([](Steer& x) { x.protocol = 17; }), 0);
    EXPECT_EQ(refused([](Steer& x) { x.protocol = 1; }), EINVAL);
    EXPECT_EQ(refused([](Steer& x) { x.local.port = 0; }), EINVAL);
    EXPECT_EQ(refused([](Steer& x) { x.local = to_wire(Endpoint{IpAddr::any_v4(), 80}); }), EINVAL);
    EXPECT_EQ(refused([](Steer& x) {
                  x.local = to_wire(Endpoint{IpAddr::v4(224, 0, 0, 1), 80});
              }),
              EINVAL);
    EXPECT_EQ(refused([](Steer& x) { x.local.address[0] = 1; }), EINVAL);
    EXPECT_EQ(refused([](Steer& x) { x.remote.port = 0; }), EINVAL) << "half a remote end";
    EXPECT_EQ(refused([](Steer& x) { x.remote = to_wire(Endpoint{IpAddr::any_v4(), 9}); }), EINVAL);
    EXPECT_EQ(refused([](Steer& x) { x.slot = 0; }), EINVAL);
    EXPECT_EQ(refused([](Steer& x) { x.slot = kSlots; }), EINVAL);
    EXPECT_EQ(refused([](Steer& x) { x.gate = kGates; }), EINVAL);
    EXPECT_EQ(refused([](Steer& x) { x.ignore_firewall = 2; }), EINVAL);
    EXPECT_EQ(refused([](Steer& x) { x.zero = 1; }), EINVAL);
    EXPECT_TRUE(answered(Op::steer));
    EXPECT_FALSE(answered(Op::unsteer));
}

}  // namespace
}  // namespace vma::broker
