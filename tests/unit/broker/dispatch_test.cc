// Who may have what done.
#include "broker/dispatch.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "support/broker_fake.h"

namespace vma::broker {
namespace {

constexpr uint32_t kLayout = 4711;
constexpr int kTwin = 1 << 20, kFile = kTwin + 1;  // never open in this process: Fds closes them

class Dispatch : public ::testing::Test {
  protected:
    void greet(bool trusted, uint64_t cookie = FakeOperations::kCookie, uint32_t layout = kLayout) {
        dispatcher = std::make_unique<Dispatcher>(operations, kLayout, trusted);
        Hello hello;
        hello.layout = layout;
        hello.netns_cookie = cookie;
        alive = send(Op::hello, &hello, sizeof hello, {});
    }
    bool send(Op op, const void* body, size_t bytes, std::vector<int> with) {
        Head head;
        head.op = op;
        head.bytes = uint32_t(bytes);
        std::vector<uint8_t> packet(sizeof head + bytes);
        std::memcpy(packet.data(), &head, sizeof head);
        if (bytes) std::memcpy(packet.data() + sizeof head, body, bytes);
        Fds fds;
        for (const int fd : with) fds.add(fd);
        answer = {};
        return dispatcher->message(packet, fds, answer);
    }
    // A connection of `local` without a byte in its queues; the answer's error.
    int repair(Op op, const Endpoint& local) {
        tcp::Snapshot s;
        s.local = local;
        s.remote = {IpAddr::v4(10, 0, 0, 9), 999};
        s.state = tcp::State::ESTABLISHED;
        Repair body;
        body.image.snapshot = to_wire(s);
        body.image.options.known = 0xfffff;
        EXPECT_TRUE(send(op, &body, sizeof body, {kTwin}));
        EXPECT_TRUE(answer.send);
        return answer.reply.error;
    }
    int calls(const char* what) {
        int n = 0;
        for (const auto& c : operations.calls) n += c == what;
        return n;
    }
    static Endpoint at(uint16_t port) { return {IpAddr::v4(10, 0, 0, 2), port}; }

    FakeOperations operations;
    std::unique_ptr<Dispatcher> dispatcher;
    Dispatcher::Answer answer;
    bool alive = false;
};

TEST_F(Dispatch, NothingBeforeHello) {
    dispatcher = std::make_unique<Dispatcher>(operations, kLayout, true);
    EXPECT_FALSE(send(Op::leaving, nullptr, 0, {}));
    EXPECT_EQ(dispatcher->counters().malformed, 1u);
}

TEST_F(Dispatch, AnotherBuildOrNamespaceIsNotServed) {
    greet(true, FakeOperations::kCookie, kLayout + 1);
    EXPECT_FALSE(alive);
    greet(true, FakeOperations::kCookie + 1);
    EXPECT_FALSE(alive);
    greet(true);
    EXPECT_TRUE(alive);
    EXPECT_FALSE(send(Op::hello, nullptr, 0, {}));
}

TEST_F(Dispatch, BoundTwinMustHaveTheTuplesPort) {
    greet(true);
    operations.sockets[kTwin] = FakeOperations::tcp(at(8080));
    EXPECT_EQ(repair(Op::restore, at(8080)), 0);
    EXPECT_EQ(repair(Op::restore, at(8081)), EACCES);
    EXPECT_EQ(repair(Op::restore, {IpAddr::v4(10, 0, 0, 3), 8080}), EACCES);
    operations.sockets[kTwin] = FakeOperations::tcp({IpAddr::any_v4(), 8080});
    EXPECT_EQ(repair(Op::restore, at(8080)), 0);
    EXPECT_EQ(calls("restore"), 2);
    EXPECT_EQ(dispatcher->counters().refused, 2u);
}

TEST_F(Dispatch, OnlyFreshTcpSocketsOfTheNamespace) {
    greet(true);
    EXPECT_EQ(repair(Op::restore, at(80)), EINVAL) << "not a socket";
    SocketFacts f = FakeOperations::tcp(at(80));
    f.netns_cookie++;
    operations.sockets[kTwin] = f;
    EXPECT_EQ(repair(Op::restore, at(80)), EXDEV);
    f = FakeOperations::tcp(at(80));
    f.connected = true;
    operations.sockets[kTwin] = f;
    EXPECT_EQ(repair(Op::restore, at(80)), EINVAL);
    f.tcp = false, f.udp = true, f.connected = false;
    operations.sockets[kTwin] = f;
    EXPECT_EQ(repair(Op::restore, at(80)), EINVAL);
    EXPECT_EQ(calls("restore"), 0);
}

TEST_F(Dispatch, UnboundTwinOfAnUntrustedClient) {
    greet(false);
    operations.sockets[kTwin] = FakeOperations::tcp();
    EXPECT_EQ(repair(Op::restore, at(80)), EACCES) << "a privileged port";
    EXPECT_EQ(calls("bind"), 0);
    EXPECT_EQ(repair(Op::restore, at(8080)), 0) << "anybody could have bound it";
    EXPECT_EQ(calls("bind"), 1);
    operations.ports_taken = true;
    EXPECT_EQ(repair(Op::restore, at(8080)), EACCES) << "somebody has it";
    EXPECT_EQ(calls("restore"), 1);
}

TEST_F(Dispatch, AShownListenerMakesThePortTheClients) {
    greet(false);
    operations.sockets[kTwin] = FakeOperations::tcp();
    operations.sockets[kFile] = FakeOperations::tcp({IpAddr::any_v4(), 80});
    operations.sockets[kFile].listening = operations.sockets[kFile].connected = true;
    EXPECT_TRUE(send(Op::prove, nullptr, 0, {kFile}));
    EXPECT_TRUE(answer.send) << "the client may close its socket once the broker has let go of it";
    EXPECT_EQ(answer.reply.error, 0);
    EXPECT_EQ(repair(Op::restore, at(80)), 0);
    EXPECT_EQ(calls("bind"), 0);
    EXPECT_EQ(repair(Op::restore, at(81)), EACCES);
}

TEST_F(Dispatch, AConnectionProvesNoPort) {
    greet(false);
    operations.sockets[kFile] = FakeOperations::tcp(at(80));
    operations.sockets[kFile].connected = true;
    EXPECT_TRUE(send(Op::prove, nullptr, 0, {kFile}));
    EXPECT_EQ(answer.reply.error, EACCES);
    operations.sockets[kFile] = FakeOperations::tcp(at(80));
    operations.sockets[kFile].netns_cookie++;
    EXPECT_TRUE(send(Op::prove, nullptr, 0, {kFile}));
    EXPECT_TRUE(dispatcher->proven().empty());
    EXPECT_EQ(dispatcher->counters().refused, 2u);
}

TEST_F(Dispatch, ProofsAreBounded) {
    greet(false);
    for (unsigned i = 0; i < Dispatcher::kMostProven + 10; i++) {
        operations.sockets[kFile] = FakeOperations::tcp(at(uint16_t(2000 + i)));
        ASSERT_TRUE(send(Op::prove, nullptr, 0, {kFile}));
    }
    EXPECT_EQ(dispatcher->proven().size(), Dispatcher::kMostProven);
    EXPECT_TRUE(dispatcher->owns_port(at(2000 + Dispatcher::kMostProven + 9)));
    EXPECT_FALSE(dispatcher->owns_port(at(2000)));
}

TEST_F(Dispatch, TrustEndsWithThePrivileges) {
    greet(true);
    operations.sockets[kTwin] = FakeOperations::tcp();
    EXPECT_EQ(repair(Op::restore, at(80)), 0);
    EXPECT_TRUE(send(Op::drop_privileges, nullptr, 0, {}));
    EXPECT_FALSE(dispatcher->trusted());
    EXPECT_EQ(repair(Op::restore, at(80)), EACCES);
}

TEST_F(Dispatch, FinishOnlyWhatHasTheTuple) {
    greet(false);
    SocketFacts f = FakeOperations::tcp(at(8080));
    f.connected = true;
    operations.sockets[kTwin] = f;
    EXPECT_EQ(repair(Op::finish, at(8080)), 0);
    EXPECT_EQ(operations.known & RepairOptions::kPrivileged, 0u);
    EXPECT_NE(operations.known, 0u);
    EXPECT_EQ(repair(Op::finish, at(8081)), EACCES);
    f.listening = true;
    operations.sockets[kTwin] = f;
    EXPECT_EQ(repair(Op::finish, at(8080)), EINVAL);
    for (const Op op : {Op::cancel, Op::checkpoint, Op::resume, Op::release})
        EXPECT_EQ(repair(op, at(8080)), EINVAL);
    f.listening = false;
    operations.sockets[kTwin] = f;
    for (const Op op : {Op::cancel, Op::checkpoint, Op::resume, Op::release})
        EXPECT_EQ(repair(op, at(8080)), 0);
    EXPECT_EQ(calls("release"), 1);
}

TEST_F(Dispatch, QueuesComeInTheirOrder) {
    greet(true);
    operations.sockets[kTwin] = FakeOperations::tcp(at(80));
    tcp::Snapshot s;
    s.local = at(80);
    s.remote = {IpAddr::v4(10, 0, 0, 9), 999};
    s.state = tcp::State::ESTABLISHED;
    s.snd_nxt = {3};
    s.snd_end = {8};
    s.unread = 2;
    Repair body;
    body.image.snapshot = to_wire(s);
    body.unacked = 3, body.unsent = 5, body.unread = 2;
    operations.file.assign(9, 0);
    EXPECT_TRUE(send(Op::restore, &body, sizeof body, {kTwin, kFile}));
    EXPECT_EQ(answer.reply.error, EINVAL) << "the file is shorter than it was said to be";
    operations.file.assign(10, 0);
    EXPECT_TRUE(send(Op::restore, &body, sizeof body, {kTwin, kFile}));
    EXPECT_EQ(answer.reply.error, 0);
    EXPECT_EQ(operations.unacked, 3u);
    EXPECT_EQ(operations.unsent, 5u);
    EXPECT_EQ(operations.unread, 2u);
}

// ---- Rings and flows

class Rings : public Dispatch {
  protected:
    int open(int ifindex = FakeOperations::kInterface, uint32_t bytes = kLeastLentBytes) {
        const OpenRing request{ifindex, bytes};
        EXPECT_TRUE(send(Op::open_ring, &request, sizeof request, {}));
        EXPECT_TRUE(answer.send);
        return answer.reply.error;
    }
    int show(uint32_t slot, int doorbell) {
        const ShowRing ring{slot, 17, FakeOperations::kInterface, 0};
        EXPECT_TRUE(send(Op::show_ring, &ring, sizeof ring, {doorbell}));
        return answer.reply.error;
    }
    Steer flow(const Endpoint& local, const Endpoint& remote, uint8_t protocol = 6) {
        Steer s;
        s.local = to_wire(local);
        if (remote.port) s.remote = to_wire(remote);
        s.slot = 1;
        s.protocol = protocol;
        return s;
    }
    int steer(const Steer& s) {
        EXPECT_TRUE(send(Op::steer, &s, sizeof s, {kTwin}));
        EXPECT_TRUE(answer.send);
        return answer.reply.error;
    }
    void with_ring(bool trusted = false) {
        greet(trusted);
        ASSERT_EQ(open(), 0);
    }
    SocketFacts& twin(const Endpoint& local) {
        return operations.sockets[kTwin] = FakeOperations::tcp(local);
    }
    SocketFacts& udp_twin(const Endpoint& local) {
        SocketFacts& f = twin(local);
        f.tcp = false, f.udp = true;
        return f;
    }
    static Endpoint peer(uint16_t port = 999) { return {IpAddr::v4(10, 0, 0, 9), port}; }
};

TEST_F(Rings, OpenedWithItsDescriptors) {
    greet(false);
    EXPECT_EQ(open(), 0);
    EXPECT_EQ(answer.reply.slot, 1u);
    EXPECT_EQ(answer.reply.token, 1001u);
    EXPECT_EQ(answer.fd_count, kRingFds);
    EXPECT_EQ(open(FakeOperations::kInterface + 1), ENODEV);
    EXPECT_EQ(answer.fd_count, 0u);
    EXPECT_EQ(dispatcher->counters().rings, 1u);
}

TEST_F(Rings, MemoryAndNumberAreBounded) {
    greet(false);
    EXPECT_EQ(open(FakeOperations::kInterface, kMostLentBytes / 2), 0);
    EXPECT_EQ(open(FakeOperations::kInterface, kMostLentBytes), ENOSPC);
    EXPECT_EQ(open(FakeOperations::kInterface, kMostLentBytes / 2), 0);
    EXPECT_EQ(open(), ENOSPC) << "not a byte more";
    greet(false);
    for (unsigned i = 0; i < Dispatcher::kMostRings; i++) EXPECT_EQ(open(), 0);
    EXPECT_EQ(open(), ENOSPC);
    operations.doorbell_of[200] = kFile;
    EXPECT_EQ(show(200, kFile), ENOSPC);
}

TEST_F(Rings, ShownByItsDoorbell) {
    greet(false);
    operations.doorbell_of[1] = kFile;
    EXPECT_EQ(show(1, kTwin), EACCES) << "another ring's";
    EXPECT_EQ(show(2, kFile), EACCES);
    twin(at(8080));
    EXPECT_EQ(steer(flow(at(8080), peer())), EACCES);
    EXPECT_EQ(show(1, kFile), 0);
    EXPECT_EQ(steer(flow(at(8080), peer())), 0);
}

TEST_F(Rings, OnlyIntoOwnRings) {
    with_ring(true);
    twin(at(8080));
    Steer s = flow(at(8080), peer());
    s.slot = 2;
    EXPECT_EQ(steer(s), EACCES) << "not even when trusted";
    EXPECT_TRUE(send(Op::unsteer, &s, sizeof s, {}));
    EXPECT_EQ(calls("steer") + calls("unsteer"), 0);
    EXPECT_EQ(dispatcher->counters().refused, 2u);
    s.slot = 1;
    EXPECT_EQ(steer(s), 0);
    EXPECT_TRUE(send(Op::unsteer, &s, sizeof s, {}));
    EXPECT_FALSE(answer.send);
    EXPECT_EQ(calls("unsteer"), 1);
}

TEST_F(Rings, OnlySocketsOfTheNamespaceAndProtocol) {
    with_ring();
    EXPECT_EQ(steer(flow(at(8080), peer())), EINVAL) << "not a socket";
    udp_twin(at(8080));
    EXPECT_EQ(steer(flow(at(8080), peer())), EINVAL);
    EXPECT_EQ(steer(flow(at(8080), peer(), 17)), 0);
    twin(at(8080));
    EXPECT_EQ(steer(flow(at(8080), peer(), 17)), EINVAL);
    twin(at(8080)).netns_cookie++;
    EXPECT_EQ(steer(flow(at(8080), peer())), EXDEV);
    twin(at(8080)).netns_cookie = 0;
    EXPECT_EQ(steer(flow(at(8080), peer())), EXDEV);
}

TEST_F(Rings, TheTwinMustBeBoundToTheLocalEnd) {
    with_ring();
    twin(at(8080));
    EXPECT_EQ(steer(flow(at(8080), peer())), 0);
    EXPECT_EQ(steer(flow(at(8081), peer())), EACCES);
    EXPECT_EQ(steer(flow({IpAddr::v4(10, 0, 0, 3), 8080}, peer())), EACCES);
    twin({IpAddr::any_v4(), 8080});
    EXPECT_EQ(steer(flow(at(8080), peer())), 0);
    EXPECT_EQ(steer(flow({FakeOperations::kElsewhere, 8080}, peer())), EADDRNOTAVAIL)
        << "traffic that this host forwards";
    EXPECT_EQ(calls("steer"), 2);
}

TEST_F(Rings, AConnectedSocketStandsForItsTuple) {
    with_ring();
    for (const uint8_t protocol : {uint8_t(6), uint8_t(17)}) {
        SocketFacts& f = protocol == 6 ? twin(at(8080)) : udp_twin(at(8080));
        f.connected = true;
        f.remote = peer();
        EXPECT_EQ(steer(flow(at(8080), peer(), protocol)), 0);
        EXPECT_EQ(steer(flow(at(8080), peer(998), protocol)), EACCES);
        EXPECT_EQ(steer(flow(at(8080), {}, protocol)), EACCES) << "all remotes";
    }
}

TEST_F(Rings, AllRemotesNeedAListenerOrUdp) {
    with_ring();
    twin(at(8080));
    EXPECT_EQ(steer(flow(at(8080), {})), EACCES) << "bound only";
    operations.sockets[kTwin].listening = operations.sockets[kTwin].connected = true;
    EXPECT_EQ(steer(flow(at(8080), {})), 0);
    EXPECT_EQ(steer(flow(at(8080), peer())), 0) << "a connection of the listener";
    udp_twin({IpAddr::any_v4(), 8080});
    EXPECT_EQ(steer(flow(at(8080), {}, 17)), 0);
}

TEST_F(Rings, TheTwinOfAnAcceptedConnectionNeedsAShownPort) {
    with_ring();
    twin({});
    EXPECT_EQ(steer(flow(at(8080), peer())), EACCES);
    operations.sockets[kFile] = FakeOperations::tcp({IpAddr::any_v4(), 8080});
    EXPECT_TRUE(send(Op::prove, nullptr, 0, {kFile}));
    EXPECT_EQ(steer(flow(at(8080), peer())), 0);
    EXPECT_EQ(steer(flow(at(8081), peer())), EACCES);
    EXPECT_EQ(steer(flow(at(8080), {})), EACCES) << "one tuple at a time";
    operations.sockets[kTwin].connected = true;
    EXPECT_EQ(steer(flow(at(8080), peer())), EACCES);
    udp_twin({});
    EXPECT_EQ(steer(flow(at(8080), peer(), 17)), EACCES);
}

TEST_F(Rings, TheFirewallSaysNo) {
    with_ring();
    operations.firewall = true;
    twin(at(8080));
    EXPECT_EQ(steer(flow(at(8080), peer())), EKEYREJECTED);
    EXPECT_EQ(dispatcher->counters().failed, 1u);
    EXPECT_EQ(dispatcher->counters().steered, 0u);
}

TEST_F(Rings, WatchOnlyOfOwnRingsWithoutTrust) {
    Watch w;
    w.arena = 0x7f0000000000;
    w.reserve = 1 << 30;
    w.root = w.arena + 4096;
    w.slot = 1;
    w.token = 1001;
    w.ifindex = 2;
    greet(false);
    EXPECT_TRUE(send(Op::watch, &w, sizeof w, {kFile}));
    EXPECT_EQ(calls("watch"), 0);
    EXPECT_TRUE(answer.send) << "a process may be killed right after connect()";
    EXPECT_EQ(answer.reply.error, EACCES);
    EXPECT_EQ(open(), 0);
    EXPECT_TRUE(send(Op::watch, &w, sizeof w, {kFile}));
    EXPECT_EQ(calls("watch"), 1);
    EXPECT_EQ(answer.reply.error, 0);
    greet(true);
    EXPECT_TRUE(send(Op::watch, &w, sizeof w, {kFile}));
    EXPECT_EQ(calls("watch"), 2);
}

TEST_F(Dispatch, LeavingAndStaying) {
    greet(true);
    EXPECT_TRUE(send(Op::leaving, nullptr, 0, {}));
    EXPECT_TRUE(operations.left);
    EXPECT_TRUE(send(Op::staying, nullptr, 0, {}));
    EXPECT_FALSE(operations.left);
    EXPECT_FALSE(send(Op::reply, nullptr, 0, {})) << "only the broker answers";
}

TEST_F(Dispatch, NeighboursAreByPolicyAndAddressesAreTheNamespaces) {
    greet(false);
    ASSERT_TRUE(send(Op::share, nullptr, 0, {kTwin}));
    EXPECT_EQ(answer.reply.error, 0);
    EXPECT_FALSE(send(Op::share, nullptr, 0, {}));
    greet(false);
    operations.neighbours = false;
    ASSERT_TRUE(send(Op::share, nullptr, 0, {kTwin}));
    EXPECT_TRUE(answer.send);
    EXPECT_EQ(answer.reply.error, EDQUOT);
    EXPECT_EQ(dispatcher->counters().refused, 1u);
    Publish body;
    body.local = to_wire(at(80));
    ASSERT_TRUE(send(Op::publish, &body, sizeof body, {}));
    EXPECT_EQ(answer.reply.error, 0);
    ASSERT_EQ(operations.published.size(), 1u);
    EXPECT_EQ(operations.published[0], at(80));
    body.local = to_wire(Endpoint{FakeOperations::kElsewhere, 80});
    ASSERT_TRUE(send(Op::publish, &body, sizeof body, {}));
    EXPECT_EQ(answer.reply.error, EADDRNOTAVAIL);
    EXPECT_EQ(operations.published.size(), 1u);
    EXPECT_EQ(dispatcher->counters().refused, 2u);
    body.local = {};
    EXPECT_FALSE(send(Op::publish, &body, sizeof body, {}));
}

}  // namespace
}  // namespace vma::broker
