// Which groups this host is in: known at the moment of the question, or never claimed.
#include "engine/local_members.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include <string>

#include "support/namespace.h"

namespace vma {
namespace {

constexpr uint32_t kGroup = 0xef4d0801;

bool kernel_tells() {
    utsname system{};
    int major = 0, minor = 0;
    uname(&system);
    return sscanf(system.release, "%d.%d", &major, &minor) == 2 && major * 1000 + minor >= 6015;
}

int lo_up() {
    const int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    snprintf(request.ifr_name, sizeof request.ifr_name, "lo");
    request.ifr_flags = IFF_UP;
    EXPECT_EQ(ioctl(s, SIOCSIFFLAGS, &request), 0);
    return s;
}

int member(int fd, int name, uint32_t group) {
    const ip_mreqn request{{htonl(group)}, {}, 1};
    return setsockopt(fd, IPPROTO_IP, name, &request, sizeof request);
}

TEST(LocalMembersTest, EveryChangeIsSeenByTheNextQuestion) {
    IN_NAMESPACE([] {
        const int one = lo_up(), two = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        LocalMembers members;
        ASSERT_EQ(member(one, IP_ADD_MEMBERSHIP, kGroup), 0);
        EXPECT_TRUE(members.possible(1, kGroup)) << "joined before the first question";
        if (!kernel_tells()) {
            EXPECT_TRUE(members.possible(1, kGroup + 1)) << "unknown means perhaps";
            return;
        }
        for (int round = 0; round < 200; round++) {
            EXPECT_FALSE(members.possible(1, kGroup + 1));
            ASSERT_EQ(member(two, IP_ADD_MEMBERSHIP, kGroup + 1), 0);
            EXPECT_TRUE(members.possible(1, kGroup + 1));
            EXPECT_FALSE(members.possible(2, kGroup + 1)) << "another interface";
            ASSERT_EQ(member(one, IP_ADD_MEMBERSHIP, kGroup + 1), 0);
            ASSERT_EQ(member(two, IP_DROP_MEMBERSHIP, kGroup + 1), 0);
            EXPECT_TRUE(members.possible(1, kGroup + 1)) << "one is still in it";
            ASSERT_EQ(member(one, IP_DROP_MEMBERSHIP, kGroup + 1), 0);
        }
        close(one);
        EXPECT_FALSE(members.possible(1, kGroup)) << "the last one closed";
    });
}

// More changes than the socket's buffer holds: what was not told is read again.
TEST(LocalMembersTest, LostNewsAreReadAgain) {
    IN_NAMESPACE([] {
        const int one = lo_up();
        LocalMembers members;
        (void)members.possible(1, kGroup);
        for (int round = 0; round < 30000; round++) {
            ASSERT_EQ(member(one, IP_ADD_MEMBERSHIP, kGroup), 0);
            ASSERT_EQ(member(one, IP_DROP_MEMBERSHIP, kGroup), 0);
        }
        ASSERT_EQ(member(one, IP_ADD_MEMBERSHIP, kGroup + 2), 0);
        EXPECT_TRUE(members.possible(1, kGroup + 2));
        if (kernel_tells()) {
            EXPECT_FALSE(members.possible(1, kGroup));
        }
        close(one);
    });
}

}  // namespace
}  // namespace vma
