#include "base/descriptor_message.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <utility>
#include <vector>

namespace vma {
namespace {

class DescriptorMessage : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_), 0);
        ASSERT_EQ(pipe2(pipe_, O_CLOEXEC), 0);
    }
    void TearDown() override {
        for (const int fd : {ends_[0], ends_[1], pipe_[0], pipe_[1]})
            if (fd >= 0) close(fd);
    }
    Status send(std::span<const int> fds, size_t bytes = 2) {
        const iovec parts[2] = {{const_cast<char*>("ab"), 1}, {const_cast<char*>("bc"), bytes - 1}};
        return send_with_fds(ends_[0], parts, fds);
    }
    Result<size_t> receive(Fds& fds, int flags = MSG_CMSG_CLOEXEC) {
        return receive_with_fds(ends_[1], buffer_, fds, flags);
    }
    // Nobody else holds the writing end: the reading end is at its end.
    bool writer_gone() {
        close(std::exchange(pipe_[1], -1));
        char c;
        return read(pipe_[0], &c, 1) == 0;
    }
    int ends_[2], pipe_[2];
    uint8_t buffer_[2] = {};
};

TEST_F(DescriptorMessage, carries_bytes_and_descriptors) {
    ASSERT_TRUE(send({{pipe_[0], pipe_[1]}}));
    Fds fds;
    const auto n = receive(fds);
    ASSERT_TRUE(n);
    EXPECT_EQ(*n, 2u);
    EXPECT_EQ(buffer_[0], 'a');
    EXPECT_EQ(buffer_[1], 'b');
    ASSERT_EQ(fds.count(), 2u);
    EXPECT_EQ(fcntl(fds[0], F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(fds[2], -1);
    ASSERT_EQ(write(fds[1], "x", 1), 1);
    char c;
    EXPECT_EQ(read(pipe_[0], &c, 1), 1);
}

TEST_F(DescriptorMessage, descriptors_survive_exec_only_when_asked) {
    ASSERT_TRUE(send({{pipe_[1]}}));
    Fds fds;
    ASSERT_TRUE(receive(fds, 0));
    EXPECT_EQ(fcntl(fds[0], F_GETFD), 0);
}

TEST_F(DescriptorMessage, what_is_not_taken_is_closed) {
    int taken = -1;
    {
        ASSERT_TRUE(send({{pipe_[1], pipe_[0]}}));
        Fds fds;
        ASSERT_TRUE(receive(fds));
        taken = fds.take(1);
        EXPECT_EQ(fds.take(1), -1);
        EXPECT_EQ(fds.take(2), -1);
    }
    EXPECT_EQ(fcntl(taken, F_GETFD), FD_CLOEXEC);
    close(taken);
    EXPECT_TRUE(writer_gone());
}

TEST_F(DescriptorMessage, a_message_too_long_for_the_room_leaves_no_descriptor) {
    ASSERT_TRUE(send({{pipe_[1]}}, 3));
    Fds fds;
    EXPECT_EQ(receive(fds).error(), EMSGSIZE);
    EXPECT_EQ(fds.count(), 0u);
    EXPECT_TRUE(writer_gone());
}

TEST_F(DescriptorMessage, as_many_as_the_kernel_takes) {
    std::vector<int> many(kMostFds, pipe_[0]);
    ASSERT_TRUE(send(many));
    Fds fds;
    ASSERT_TRUE(receive(fds));
    EXPECT_EQ(fds.count(), kMostFds);
    many.push_back(pipe_[0]);
    EXPECT_EQ(send(many).error(), EINVAL);
}

TEST_F(DescriptorMessage, nothing_there_and_nobody_there) {
    Fds fds;
    EXPECT_EQ(receive(fds).error(), EAGAIN);
    close(std::exchange(ends_[0], -1));
    const auto n = receive(fds);
    ASSERT_TRUE(n);
    EXPECT_EQ(*n, 0u);
    EXPECT_EQ(fds.count(), 0u);
}

}  // namespace
}  // namespace vma
