// Who is introduced to whom, and what counts as proof (tools/vmad/registry.h). Links are real sockets; connections are what a table says.
#include "vmad/registry.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <optional>

#include "base/descriptor_message.h"

namespace vmad {
namespace {

using vma::Endpoint;
using vma::IpAddr;
using vma::shm::LinkMessage;
using vma::shm::LinkWord;

const Endpoint kServer{IpAddr::v4(10, 0, 0, 2), 80}, kClient{IpAddr::v4(10, 0, 0, 3), 40000};

class Meeting : public ::testing::Test {
  protected:
    Meeting() : registry([this](int fd) { return read(fd); }) {}
    ~Meeting() override {
        for (const auto& [id, fd] : links) close(fd);
        for (const int fd : open) close(fd);
    }

    // A new member's link.
    void join(uint64_t id, uint64_t place = 111, const std::string& share = "trade",
              uid_t user = 1000) {
        int pair[2];
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
        if (links.contains(id)) close(links[id]);
        links[id] = pair[0];
        result = registry.join(id, Fd(pair[1]), place, user, share).error();
    }
    void serve() {
        registry.serve([this](uid_t, unsigned times) { blamed += times; });
    }
    // The next message at a member's end; `fd`: what came with it.
    std::optional<LinkMessage> heard(uint64_t id, int* fd = nullptr) {
        LinkMessage m;
        vma::Fds fds;
        const auto n = vma::receive_with_fds(links[id], {reinterpret_cast<uint8_t*>(&m), sizeof m},
                                             fds, MSG_CMSG_CLOEXEC);
        if (!n || *n == 0) return std::nullopt;
        if (fds.count() && fd) open.push_back(*fd = fds.take(0));
        return m;
    }
    bool say(uint64_t id, const LinkMessage& m, int passed = -1) {
        const iovec part{const_cast<LinkMessage*>(&m), sizeof m};
        const bool sent =
            vma::send_with_fds(links[id], {&part, 1}, {&passed, passed >= 0 ? size_t(1) : 0}).ok();
        serve();
        return sent;
    }
    int seek(uint64_t id, const Endpoint& where) {
        LinkMessage m;
        m.word = LinkWord::seek;
        m.address = where.addr.v4_host();
        m.port = where.port;
        return say(id, m) ? answer(id) : -1;
    }
    // The answer; introductions before it are kept.
    int answer(uint64_t id) {
        int fd = -1;
        for (auto m = heard(id, &fd); m; m = heard(id, &fd)) {
            if (m->word == LinkWord::answer) return m->error;
            met.push_back(m->introduction);
        }
        return -1;
    }
    // `name`: which row of `ends` the descriptor that is passed stands for.
    int about(uint64_t id, LinkWord word, uint64_t introduction, const std::string& name) {
        LinkMessage m;
        m.word = word;
        m.introduction = introduction;
        asked = name;
        return say(id, m, links[id]) ? answer(id) : -1;
    }
    vma::Result<Registry::End> read(int) {
        const auto it = ends.find(asked);
        if (it == ends.end()) return vma::Errno{EINVAL};
        return it->second;
    }

    std::map<uint64_t, int> links;
    std::vector<int> open;
    std::vector<uint64_t> met;
    std::map<std::string, Registry::End> ends;
    std::string asked;
    unsigned blamed = 0;
    int result = 0;
    Registry registry;
};

TEST_F(Meeting, NobodyMeetsHisOwnNamespaceOrAnotherGroup) {
    join(1);
    join(2);
    ASSERT_TRUE(registry.publish(2, kServer).ok());
    EXPECT_EQ(seek(1, kServer), ENOENT);
    EXPECT_EQ(seek(1, kClient), ENOENT);
    EXPECT_EQ(registry.counters().introduced, 0u);
    EXPECT_EQ(registry.publish(3, kServer).error(), ENOLINK);
}

TEST_F(Meeting, WhoSaysNonsenseIsOver) {
    const auto ended = [&](const LinkMessage& m, int passed) {
        join(1);
        say(1, m, passed);
        return registry.members() == 0;
    };
    LinkMessage m;
    EXPECT_TRUE(ended(m, -1));
    m.word = LinkWord::seek;
    EXPECT_TRUE(ended(m, -1));  // no port
    m.port = 80;
    EXPECT_FALSE(ended(m, -1));
    EXPECT_TRUE(ended(m, 0));  // a descriptor too many
    m.word = LinkWord::prove;
    EXPECT_TRUE(ended(m, -1));
    m.word = LinkWord::met;
    EXPECT_TRUE(ended(m, 0));
    m.word = LinkWord::seek;
    m.zero = 1;
    EXPECT_TRUE(ended(m, -1));
    m.zero = 0;
    m.version = 2;
    EXPECT_TRUE(ended(m, -1));
    EXPECT_EQ(registry.counters().malformed, 7u);
}

TEST_F(Meeting, Limits) {
    join(1);
    for (unsigned i = 0; i < Registry::kMostPublished; i++)
        EXPECT_TRUE(registry.publish(1, {kServer.addr, uint16_t(i + 1)}).ok());
    EXPECT_TRUE(registry.publish(1, {kServer.addr, 1}).ok());
    EXPECT_EQ(registry.publish(1, {kServer.addr, 1000}).error(), ENOSPC);
    // A new link: nothing is published by it.
    join(1);
    EXPECT_TRUE(registry.publish(1, {kServer.addr, 1000}).ok());
    EXPECT_EQ(registry.members(), 1u);
    for (unsigned i = 2; i <= Registry::kMostOfUser; i++) join(i);
    EXPECT_EQ(result, 0);
    join(5000);
    EXPECT_EQ(result, ENOSPC);
    join(5001, 111, "trade", 1001);
    EXPECT_EQ(result, 0);
    registry.end_user(1000);
    EXPECT_EQ(registry.members(), 1u);
    registry.clear();
    EXPECT_EQ(registry.members(), 0u);
}

// Two members in two namespaces.
class Abroad : public Meeting {
  protected:
    void SetUp() override {
        join(1, 111);
        join(2, 222);
        ASSERT_TRUE(registry.publish(2, kServer).ok());
        ASSERT_EQ(seek(1, kServer), 0);
        ASSERT_EQ(met.size(), 1u);
        introduction = met[0];
        int fd = -1;
        const auto other = heard(2, &fd);
        ASSERT_TRUE(other && other->word == LinkWord::met && fd >= 0);
        EXPECT_EQ(other->introduction, introduction);
        EXPECT_EQ(other->port, 0);  // who is sought does not hear by what name
        ends["client"] = {111, kClient, kServer, {1000, 77}};
        ends["server"] = {222, kServer, kClient, {77, 1000}};
    }
    uint64_t introduction = 0;
};

TEST_F(Abroad, TwoEndsOfOneConnection) {
    EXPECT_EQ(about(1, LinkWord::show, introduction, "client"), 0);
    EXPECT_EQ(about(2, LinkWord::prove, introduction, "server"), 0);
    EXPECT_EQ(about(1, LinkWord::prove, introduction, "client"), 0);
    EXPECT_EQ(registry.counters().proven, 2u);
    // Both know; nothing of it is left.
    EXPECT_EQ(about(1, LinkWord::prove, introduction, "client"), EACCES);
    EXPECT_EQ(about(2, LinkWord::prove, introduction, "server"), EACCES);
}

TEST_F(Abroad, WhoHasNotShownItHasNothingToProveBy) {
    EXPECT_EQ(about(2, LinkWord::prove, introduction, "server"), EACCES);
    EXPECT_EQ(about(1, LinkWord::show, introduction, "client"), 0);
    EXPECT_EQ(about(1, LinkWord::prove, introduction, "client"), EACCES);
    EXPECT_EQ(registry.counters().refused, 2u);
}

TEST_F(Abroad, TheSameNameIsNoProofAndOneGuessIsAll) {
    for (const auto& [sent, received] : {std::pair{78u, 1000u}, {77u, 1001u}, {1000u, 77u}}) {
        ends["forged"] = {222, kServer, kClient, {sent, received}};
        EXPECT_EQ(about(1, LinkWord::show, introduction, "client"), 0);
        EXPECT_EQ(about(2, LinkWord::prove, introduction, "forged"), EACCES);
        EXPECT_EQ(about(2, LinkWord::prove, introduction, "server"), EACCES);
        EXPECT_EQ(about(1, LinkWord::prove, introduction, "client"), EACCES);
    }
}

TEST_F(Abroad, OnlySocketsOfTheOwnNamespaceAndOwnIntroductions) {
    ends["elsewhere"] = {111, kServer, kClient, {77, 1000}};
    EXPECT_EQ(about(2, LinkWord::prove, introduction, "elsewhere"), EXDEV);
    EXPECT_EQ(about(2, LinkWord::prove, introduction, "none"), EINVAL);
    EXPECT_EQ(about(2, LinkWord::prove, introduction + 1, "server"), ENOENT);
    join(3, 333);
    EXPECT_EQ(about(3, LinkWord::prove, introduction, "server"), ENOENT);
    join(4, 333, "others");
    EXPECT_EQ(seek(4, kServer), ENOENT);
}

TEST_F(Abroad, WhoHasMetIsIntroducedAgainWhenTheChannelHasEnded) {
    EXPECT_EQ(seek(1, kServer), ENOENT);
    EXPECT_EQ(met.size(), 1u);
    // Another one who accepts there is new.
    join(3, 333);
    ASSERT_TRUE(registry.publish(3, kServer).ok());
    EXPECT_EQ(seek(1, kServer), 0);
    EXPECT_EQ(met.size(), 2u);
    LinkMessage m;
    m.word = LinkWord::forget;
    m.introduction = introduction;
    EXPECT_TRUE(say(3, m));  // not his
    EXPECT_EQ(about(1, LinkWord::show, introduction, "client"), 0);
    EXPECT_TRUE(say(2, m));
    EXPECT_EQ(about(1, LinkWord::show, introduction, "client"), ENOENT);
    EXPECT_EQ(seek(1, kServer), 0);
    EXPECT_EQ(met.size(), 3u);
}

TEST_F(Abroad, TheEndOfOneIsTheEndOfItsIntroductions) {
    shutdown(links[2], SHUT_RDWR);
    serve();
    EXPECT_EQ(registry.members(), 1u);
    EXPECT_EQ(about(1, LinkWord::show, introduction, "client"), ENOENT);
    EXPECT_EQ(seek(1, kServer), ENOENT);
}

TEST_F(Abroad, AsManyAsThatAreShown) {
    for (unsigned i = 0; i < Registry::kMostShown + 1; i++) {
        ends["one"] = {111, {kClient.addr, uint16_t(i + 1)}, kServer, {1000, 77}};
        EXPECT_EQ(about(1, LinkWord::show, introduction, "one"), 0);
    }
    ends["oldest"] = {222, kServer, {kClient.addr, 1}, {77, 1000}};
    ends["second"] = {222, kServer, {kClient.addr, 2}, {77, 1000}};
    EXPECT_EQ(about(2, LinkWord::prove, introduction, "oldest"), EACCES);
    EXPECT_EQ(about(2, LinkWord::prove, introduction, "second"), 0);
}

}  // namespace
}  // namespace vmad
