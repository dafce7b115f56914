// Two ends of a handshake that agree, and what each of them refuses.
#include "dev/shm/handshake.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <memory>

#include "base/arena.h"
#include "base/close_aside.h"
#include "base/descriptor_message.h"
#include "support/frames.h"
#include "support/shm_pair.h"

namespace vma::test {
namespace {

using namespace shm;

const Self kOpener{{{1, 2}}, 77}, kJoiner{{{3, 4}}, 77};

struct Sockets {
    Sockets() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, end), 0); }
    ~Sockets() {
        close(end[0]);
        close(end[1]);
    }
    int end[2];
};

unsigned open_descriptors() {
    unsigned n = 0;
    for (int fd = 0; fd < 1024; ++fd) n += fcntl(fd, F_GETFD) != -1;
    return n;
}

// Until only so many are open: some are closed on another thread.
bool down_to(unsigned count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (open_descriptors() != count)
        if (std::chrono::steady_clock::now() > end) return false;
    return true;
}

struct UnmapArena {
    void operator()(Arena* a) const { Arena::unmap(a); }
};

TEST(ShmHandshake, MakesAPairThatCarriesFrames) {
    const unsigned before = open_descriptors();
    {
        Sockets s;
        std::string why;
        Opener opener;
        Joiner joiner;
        EXPECT_EQ(joiner.hello(s.end[1], kJoiner, &why).error(), EAGAIN);
        EXPECT_EQ(opener.answer(s.end[0], nullptr, &why).error(), EAGAIN);
        ASSERT_TRUE(opener.hello(s.end[0], kOpener, kLeastRingBytes, &why)) << why;
        EXPECT_EQ(opener.answer(s.end[0], nullptr, &why).error(), EAGAIN);
        const auto who = joiner.hello(s.end[1], kJoiner, &why);
        ASSERT_TRUE(who) << why;
        EXPECT_EQ(who->id, kOpener.id);
        EXPECT_EQ(who->pid, getpid());
        EXPECT_EQ(who->uid, getuid());
        auto joined = joiner.welcome(s.end[1], &why);
        ASSERT_TRUE(joined) << why;
        Neighbor neighbor;
        auto opened = opener.answer(s.end[0], &neighbor, &why);
        ASSERT_TRUE(opened) << why;
        EXPECT_EQ(neighbor.id, kJoiner.id);

        Pair a, b;
        ASSERT_TRUE(a.open(*opened, &why)) << why;
        ASSERT_TRUE(b.open(*joined, &why)) << why;
        std::unique_ptr<Arena, UnmapArena> arena(*Arena::create(Arena::kMinReserve * 8));
        PacketPool pool(*arena);
        const Frame f = build_frame({});
        TxFrame t;
        t.head = f.view();
        for (auto [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
            to->fall_asleep();
            ASSERT_EQ(from->push(t), 0);
            EXPECT_TRUE(from->call());
            pollfd bell{to->bell(), POLLIN, 0};
            EXPECT_EQ(poll(&bell, 1, 0), 1) << "the right bell";
            Packet p;
            ASSERT_EQ(to->take(pool, p), Inbound::Took::frame);
            EXPECT_TRUE(same_frame(p->view(), f));
        }
    }
    EXPECT_EQ(open_descriptors(), before);
}

TEST(ShmHandshake, AnEndOrARefusalIsHeard) {
    const unsigned before = open_descriptors();
    std::string why;
    for (int error : {EALREADY, EACCES, 0, 5000}) {
        Sockets s;
        Opener opener;
        ASSERT_TRUE(opener.hello(s.end[0], kOpener, kLeastRingBytes, &why));
        Joiner joiner;
        ASSERT_TRUE(joiner.hello(s.end[1], kJoiner, &why));
        Joiner::refuse(s.end[1], kJoiner, error);
        EXPECT_EQ(opener.answer(s.end[0], nullptr, &why).error(),
                  error > 0 && error < 4096 ? error : EPROTO);
        EXPECT_NE(why.find("refuses"), std::string::npos) << why;
    }
    {
        Sockets s;
        Opener opener;
        ASSERT_TRUE(opener.hello(s.end[0], kOpener, kLeastRingBytes, &why));
        close(std::exchange(s.end[1], -1));
        const int error = opener.answer(s.end[0], nullptr, &why).error();
        EXPECT_EQ(error, ECONNRESET) << why;
    }
    {
        Sockets s;
        close(std::exchange(s.end[0], -1));
        Joiner joiner;
        EXPECT_EQ(joiner.hello(s.end[1], kJoiner, &why).error(), ECONNRESET);
        EXPECT_EQ(joiner.welcome(s.end[1], &why).error(), EPROTO) << "nobody there";
        Opener opener;
        EXPECT_EQ(opener.hello(s.end[1], kOpener, kLeastRingBytes, &why).error(), EPIPE);
        EXPECT_EQ(opener.hello(s.end[1], kOpener, 12345, &why).error(), EINVAL);
    }
    EXPECT_EQ(open_descriptors(), before);
}

// A message that is almost right.
struct Forged {
    HandshakeMessage message{};
    size_t bytes = sizeof(HandshakeMessage);
    std::vector<int> fds;
    ~Forged() {
        for (int fd : fds) close(fd);
    }
    void send(int socket) const {
        uint8_t room[128] = {};
        std::memcpy(room, &message, sizeof message);
        const iovec part{room, bytes};
        EXPECT_TRUE(send_with_fds(socket, {&part, 1}, fds));
    }
    void replace(unsigned i, int fd) { close(std::exchange(fds[i], fd)); }
};

struct Case {
    std::function<void(Forged&)> change;
    int error;
    const char* says;
};

const Case kOfBoth[] = {
    {[](Forged& f) { f.message.magic++; }, EPROTO, "something else"},
    {[](Forged& f) { f.bytes = 1; }, EPROTO, "something else"},
    {[](Forged& f) { f.bytes = 15; }, EPROTO, "something else"},
    {[](Forged& f) { f.bytes = 16; }, EPROTO, "another size"},
    {[](Forged& f) { f.bytes--; }, EPROTO, "another size"},
    {[](Forged& f) { f.bytes++; }, EPROTO, "another size"},
    {[](Forged& f) { f.message.version = 3, f.bytes += 40; }, EPROTONOSUPPORT, "version is 3"},
    {[](Forged& f) { f.message.version = 0, f.bytes = 16; }, EPROTONOSUPPORT, "version is 0"},
    {[](Forged& f) { f.message.reserved = 1; }, EPROTO, "reserved"},
    {[](Forged& f) { f.message.kind = 0; }, EPROTO, "not a"},
    {[](Forged& f) { f.message.kind = 4; }, EPROTO, "not a"},
    {[](Forged& f) { f.message.kind = 3 - f.message.kind; }, EPROTO, "not a"},
    {[](Forged& f) { f.message.namespace_cookie++; }, EXDEV, "namespace"},
    {[](Forged& f) { close(f.fds.back()), f.fds.pop_back(); }, EPROTO, "number of descriptors"},
    {[](Forged& f) { f.fds.push_back(eventfd(0, 0)); }, EPROTO, "number of descriptors"},
    {[](Forged& f) {
         while (f.fds.size() < kMostFds) f.fds.push_back(dup(f.fds[0]));
     },
     EPROTO, "number of descriptors"},
    {[](Forged& f) { f.replace(unsigned(f.fds.size() - 1), eventfd(0, 0)); }, EPROTO,
     "bell is not a timer"},
};

TEST(ShmHandshake, AHelloThatIsWrongIsRefusedWithTheReason) {
    std::vector<Case> cases(std::begin(kOfBoth), std::end(kOfBoth));
    cases.push_back(
        {[](Forged& f) { f.message.id[0] = 3, f.message.id[1] = 4; }, ELOOP, "this process"});
    cases.push_back({[](Forged& f) { f.replace(0, eventfd(0, 0)); }, EPROTO, "not a memfd"});
    cases.push_back({[](Forged& f) { std::swap(f.fds[0], f.fds[1]); }, EPROTO, "not a memfd"});
    const unsigned before = open_descriptors();
    for (const Case& c : cases) {
        SCOPED_TRACE(c.says);
        Sockets s;
        {
            Forged f;
            f.message = {kHandshakeMagic, kVersion, kHello, {1, 2}, 77, 0, 0};
            f.fds = {*create_pair_memory(kLeastRingBytes, nullptr), *create_bell()};
            c.change(f);
            f.send(s.end[0]);
        }
        Joiner joiner;
        std::string why;
        EXPECT_EQ(joiner.hello(s.end[1], kJoiner, &why).error(), c.error);
        EXPECT_NE(why.find(c.says), std::string::npos) << why;
        EXPECT_EQ(joiner.welcome(s.end[1], &why).error(), EPROTO);
        HandshakeMessage answer{};
        EXPECT_EQ(recv(s.end[0], &answer, sizeof answer, MSG_DONTWAIT), ssize_t(sizeof answer));
        EXPECT_EQ(answer.kind, kRefused);
        EXPECT_EQ(answer.error, uint32_t(c.error));
    }
    EXPECT_TRUE(down_to(before));
}

TEST(ShmHandshake, AWelcomeThatIsWrongIsNone) {
    std::vector<Case> cases(std::begin(kOfBoth), std::end(kOfBoth));
    cases.push_back(
        {[](Forged& f) { f.message.id[0] = 1, f.message.id[1] = 2; }, ELOOP, "this process"});
    const unsigned before = open_descriptors();
    for (const Case& c : cases) {
        SCOPED_TRACE(c.says);
        Sockets s;
        std::string why;
        Opener opener;
        ASSERT_TRUE(opener.hello(s.end[0], kOpener, kLeastRingBytes, &why)) << why;
        {
            Forged f;
            f.message = {kHandshakeMagic, kVersion, kWelcome, {3, 4}, 77, 0, 0};
            f.fds = {*create_bell()};
            c.change(f);
            f.send(s.end[1]);
        }
        EXPECT_EQ(opener.answer(s.end[0], nullptr, &why).error(), c.error);
        EXPECT_NE(why.find(c.says), std::string::npos) << why;
    }
    EXPECT_TRUE(down_to(before));
}

// The hello brings a socket whose close waits for a peer that reads nothing: nobody of ours waits for it.
TEST(ShmHandshake, ADescriptorThatCannotBeClosedHoldsNobodyUp) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof at;
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&at), n), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &n), 0);
    int talker = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(talker, reinterpret_cast<sockaddr*>(&at), n), 0);
    const int deaf = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    const std::vector<char> much(64 * 1024);
    while (send(talker, much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
    const linger wait{1, 30};
    ASSERT_EQ(setsockopt(talker, SOL_SOCKET, SO_LINGER, &wait, sizeof wait), 0);
    const auto began = std::chrono::steady_clock::now();
    {
        Sockets s;
        Forged f;
        f.message = {kHandshakeMagic, kVersion, kHello, {1, 2}, 77, 0, 0};
        f.fds = {*create_pair_memory(kLeastRingBytes, nullptr), dup(talker)};
        f.send(s.end[0]);
        // Theirs are closed while the message holds another.
        close(std::exchange(talker, -1));
        close(f.fds.back());
        f.fds.pop_back();
        Joiner joiner;
        std::string why;
        EXPECT_EQ(joiner.hello(s.end[1], kJoiner, &why).error(), EPROTO);
        EXPECT_NE(why.find("not a timer"), std::string::npos) << why;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(15));
    close(deaf);  // resets the connection, which ends the waiting
    close(listener);
    close_aside_end();  // a thread that nobody joins is a leak to ThreadSanitizer
}

}  // namespace
}  // namespace vma::test
