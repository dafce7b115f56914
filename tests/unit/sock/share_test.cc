// The words that a socket shares with forked children (fork.h): who has them, who is told, and that they come back.
#include <gtest/gtest.h>

#include "base/own_fd.h"
#include "engine/shard.h"
#include "sock/fork.h"
#include "sock/socket.h"
#include "support/quiet_ring.h"

namespace vma::sock {
namespace {

class PlainSocket final : public Socket {
  public:
    PlainSocket() : Socket(ObjectKind::tcp, 1, -1, 2, 1, 0) {}
    uint64_t lanes() const override { return 0; }
    uint32_t poll_events() override { return 0; }
    unsigned ring_fds(std::span<int>) override { return 0; }
    void list_unread(Unread&) override {}
    size_t fire(int, SendTemplate&) override { return 0; }
    int send_ring_fd(const Endpoint*) override { return -1; }
    uint32_t network_header(std::span<uint8_t, kMostHeaders>) override { return 0; }
    Shown show() override { return {}; }
    void publish_all() override {}
    void dump(LogLevel) override {}
    void kept_returned(Shard&, const Kept&) override {}
    void set_screen(const Screen&) override {}
    bool unscreened() override { return false; }
    bool complete(Completions&) override { return true; }
    bool stop_receiving() override { return true; }
    Showing show_one(AskProgram) override { return Showing::nothing; }
    void teardown() override { give_share(); }
    bool hand_back(Reason) override { return true; }
    void become_twin_in_child() override {}
    void fork(Shard& shard) {
        LeaseGuard lease(shard.lease());
        take_share(shard);
    }
    // As a child has it, whose memory is a copy of the owner's.
    void copy_share(const PlainSocket& owner) {
        share_.store(owner.share());
        share_serial_ = owner.share_serial_;
    }
};

class ShareTest : public testing::Test {
  protected:
    void SetUp() override {
        auto arena = Arena::create(Arena::kDefaultReserve, &memory_);
        ASSERT_TRUE(arena.ok());
        arena_ = *arena;
        Shard::Parts parts;
        parts.arena = arena_;
        parts.pool = arena_->make<PacketPool>(*arena_, PoolLimits{});
        parts.ring = new QuietRing;
        parts.secret = 1;
        shard_ = Shard::make(parts);
        ASSERT_NE(shard_, nullptr);
    }
    void TearDown() override { shard_->close_ring(); }
    // The socket is gone, and the next one has its words.
    void pass_on(PlainSocket& owner, PlainSocket& next) {
        owner.teardown();
        next.fork(*shard_);
    }

    OwnFd memory_;
    Arena* arena_ = nullptr;
    Shard* shard_ = nullptr;
};

// A forking server's connections: each has lived through a fork.
TEST_F(ShareTest, ManySocketsOneAfterTheOtherNeedNoMoreMemory) {
    size_t in_use = 0;
    for (int i = 0; i < 10000; i++) {
        PlainSocket s;
        s.fork(*shard_);
        ASSERT_NE(s.share(), nullptr);
        if (i == 0) in_use = arena_->in_use();
        s.teardown();
        EXPECT_EQ(s.share(), nullptr);
    }
    EXPECT_EQ(arena_->in_use(), in_use);
}

TEST_F(ShareTest, AChildIsToldOfTheEnd) {
    PlainSocket owner, child;
    owner.fork(*shard_);
    child.copy_share(owner);
    EXPECT_FALSE(child.share_answered());
    owner.answer_share(true);
    EXPECT_TRUE(child.share_answered());
    owner.teardown();
    EXPECT_TRUE(child.share_answered());
}

TEST_F(ShareTest, ARefusalIsAnAnswerAndTheSocketIsNotGivenUp) {
    PlainSocket owner, child;
    owner.fork(*shard_);
    child.copy_share(owner);
    owner.share()->request.store(1);
    owner.answer_share(false);
    EXPECT_TRUE(child.share_answered());
    EXPECT_EQ(owner.share()->done.load(), uint32_t(ShareRecord::kRefused));
    EXPECT_EQ(owner.share()->request.load(), 0u) << "served already";
    owner.teardown();
}

TEST_F(ShareTest, ASocketThatIsBackIsAskedForAgain) {
    PlainSocket owner, child;
    owner.fork(*shard_);
    owner.answer_share(true);
    owner.reopen_share();
    child.copy_share(owner);
    EXPECT_FALSE(child.share_answered());
    owner.teardown();
}

// Nor does what it asks for reach him.
TEST_F(ShareTest, AChildAsksForItsOwnSocketOnly) {
    PlainSocket owner, child, next;
    owner.fork(*shard_);
    child.copy_share(owner);
    EXPECT_TRUE(child.ask_share());
    EXPECT_FALSE(child.ask_share());
    EXPECT_TRUE(owner.share_asked());
    pass_on(owner, next);
    ASSERT_EQ(next.share(), child.share());
    EXPECT_FALSE(next.share_asked());
    (void)child.ask_share();
    EXPECT_FALSE(next.share_asked());
    EXPECT_TRUE(next.ask_share());
    EXPECT_TRUE(next.share_asked());
    next.answer_share(true);
    EXPECT_FALSE(next.share_asked());
    next.teardown();
}

// The words have another socket, which nobody has handed back: that is no answer to wait for.
TEST_F(ShareTest, AChildDoesNotWaitForTheNextOwner) {
    PlainSocket owner, child, next;
    owner.fork(*shard_);
    child.copy_share(owner);
    pass_on(owner, next);
    ASSERT_EQ(next.share(), child.share());
    EXPECT_EQ(next.share()->done.load(), 0u);
    EXPECT_TRUE(child.share_answered());
    next.teardown();
}

TEST_F(ShareTest, OneForAllForksOfASocket) {
    PlainSocket s;
    s.fork(*shard_);
    ShareRecord* const words = s.share();
    s.answer_share(true);
    s.fork(*shard_);
    EXPECT_EQ(s.share(), words);
    EXPECT_EQ(words->done.load(), 1u);
    s.teardown();
}

}  // namespace
}  // namespace vma::sock
