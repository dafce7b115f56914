// Handover: stand-ins and the connections behind them, within one process.
#include "sock/handover.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace vma::sock {
namespace {

sockaddr* raw(sockaddr_in& in) { return reinterpret_cast<sockaddr*>(&in); }

class HandoverTest : public testing::Test {
  protected:
    void SetUp() override {
        listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        sockaddr_in here{};
        here.sin_family = AF_INET;
        here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ASSERT_EQ(bind(listener_, raw(here), sizeof here), 0);
        ASSERT_EQ(listen(listener_, 8), 0);
        socklen_t size = sizeof here;
        ASSERT_EQ(getsockname(listener_, raw(here), &size), 0);
        local_ = {IpAddr::v4(INADDR_LOOPBACK), ntohs(here.sin_port)};
        handover_ = Handover::create();
        ASSERT_NE(handover_, nullptr);
    }
    void TearDown() override {
        if (handover_) Handover::destroy(handover_);
        close(listener_);
    }
    // A connection as repair mode leaves it: in the kernel, named by one descriptor.
    int connection(Endpoint* peer) {
        const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in to = local_.to_sockaddr_in(), own{};
        EXPECT_EQ(connect(client, raw(to), sizeof to), 0);
        socklen_t size = sizeof own;
        EXPECT_EQ(getsockname(client, raw(own), &size), 0);
        if (peer) *peer = {IpAddr::v4(INADDR_LOOPBACK), ntohs(own.sin_port)};
        clients_.push_back(client);
        return accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    }
    int accepted(sockaddr_storage& name) {
        socklen_t size = sizeof name;
        return accept4(listener_, reinterpret_cast<sockaddr*>(&name), &size, SOCK_CLOEXEC);
    }
    bool readable() {
        pollfd p{listener_, POLLIN, 0};
        return poll(&p, 1, 0) == 1;
    }

    int listener_ = -1;
    Endpoint local_;
    Handover* handover_ = nullptr;
    std::vector<int> clients_;
};

TEST_F(HandoverTest, AStandInMakesTheListenerReadableAndLeadsToTheConnection) {
    Endpoint peer, found;
    const int waits = connection(&peer);
    EXPECT_FALSE(readable());
    ASSERT_TRUE(Handover::announce(local_));
    EXPECT_TRUE(readable());
    ASSERT_TRUE(handover_->give(waits));
    sockaddr_storage name{};
    const int stand_in = accepted(name);
    ASSERT_GE(stand_in, 0);
    EXPECT_TRUE(is_stand_in(name));
    const int taken = handover_->take(found);
    ASSERT_GE(taken, 0);
    EXPECT_EQ(found, peer);
    ASSERT_EQ(write(clients_.back(), "x", 1), 1);
    char byte = 0;
    EXPECT_EQ(read(taken, &byte, 1), 1);
    close(stand_in);
    close(taken);
    EXPECT_FALSE(readable());
}

TEST_F(HandoverTest, InTheOrderTheyWaited) {
    Endpoint peers[3], found;
    for (Endpoint& peer : peers) {
        const int waits = connection(&peer);
        ASSERT_TRUE(handover_->give(waits));
    }
    for (const Endpoint& peer : peers) {
        const int taken = handover_->take(found);
        ASSERT_GE(taken, 0);
        EXPECT_EQ(found, peer);
        close(taken);
    }
}

TEST_F(HandoverTest, NothingComesOnceTheOwnerIsDone) {
    Endpoint found;
    ASSERT_TRUE(handover_->give(connection(nullptr)));
    handover_->no_more();
    const int taken = handover_->take(found);
    EXPECT_GE(taken, 0);
    close(taken);
    EXPECT_EQ(handover_->take(found), -1);
}

TEST_F(HandoverTest, WhatIsKeptNeedsNoUnixSocketAnyMore) {
    Endpoint peers[2], found;
    for (Endpoint& peer : peers) {
        const int waits = connection(&peer);
        ASSERT_TRUE(handover_->give(waits));
    }
    EXPECT_FALSE(handover_->has_kept());
    handover_->keep_here();
    EXPECT_TRUE(handover_->has_kept());
    EXPECT_LT(handover_->reader(), 0);
    for (const Endpoint& peer : peers) {
        const int taken = handover_->take(found);
        ASSERT_GE(taken, 0);
        EXPECT_EQ(found, peer);
        close(taken);
    }
    EXPECT_FALSE(handover_->has_kept());
    EXPECT_EQ(handover_->take(found), -1);
}

TEST_F(HandoverTest, OnlyAUnixSocketComesThroughExec) {
    EXPECT_EQ(Handover::from_exec(listener_), nullptr);
    EXPECT_EQ(Handover::from_exec(-1), nullptr);
    ASSERT_TRUE(handover_->give(connection(nullptr)));
    handover_->no_more();
    Handover* const next = Handover::from_exec(fcntl(handover_->reader(), F_DUPFD_CLOEXEC, 3));
    ASSERT_NE(next, nullptr);
    Endpoint found;
    const int taken = next->take(found);
    EXPECT_GE(taken, 0);
    close(taken);
    Handover::destroy(next);
}

TEST_F(HandoverTest, AreBounded) {
    std::vector<Handover*> all;
    while (Handover* one = Handover::create()) all.push_back(one);
    EXPECT_EQ(all.size(), Handover::kMost - 1);
    for (Handover* one : all) Handover::destroy(one);
    Handover* const again = Handover::create();
    EXPECT_NE(again, nullptr);
    if (again) Handover::destroy(again);
}

}  // namespace
}  // namespace vma::sock
