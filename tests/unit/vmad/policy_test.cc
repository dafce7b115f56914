// The policy of a host's broker (tools/vmad/policy.h).
#include "vmad/policy.h"

#include <gtest/gtest.h>

namespace vmad {
namespace {

constexpr gid_t kNoGroups[] = {60000};

Policy of(std::string_view text) {
    Policy policy;
    std::string why;
    EXPECT_TRUE(policy.parse(text, "file", &why)) << why;
    return policy;
}

std::string refused(std::string_view text) {
    Policy policy;
    std::string why;
    EXPECT_FALSE(policy.parse(text, "file", &why)) << text;
    return why;
}

TEST(VmadPolicy, WithoutAFileEverythingIsAllowed) {
    const Policy policy;
    const Allowance& a = policy.of(1000, kNoGroups);
    EXPECT_FALSE(a.denied);
    EXPECT_TRUE(a.has_interface("eth0"));
    EXPECT_TRUE(a.has_port(1));
    EXPECT_EQ(a.rings, UINT32_MAX);
}

TEST(VmadPolicy, WhoIsNotNamedGetsNothing) {
    EXPECT_TRUE(of("").of(0, {}).denied);
    const Policy policy = of("# nobody else\nuser 7\n\n");
    EXPECT_FALSE(policy.of(7, kNoGroups).denied);
    EXPECT_TRUE(policy.of(8, kNoGroups).denied);
}

TEST(VmadPolicy, TheFirstRuleThatMatchesDecides) {
    const Policy policy = of("user 7 deny\ngroup 20 rings 3\nany rings 1");
    const gid_t groups[] = {10, 20};
    EXPECT_TRUE(policy.of(7, groups).denied);
    EXPECT_EQ(policy.of(8, groups).rings, 3u);
    EXPECT_EQ(policy.of(8, kNoGroups).rings, 1u);
}

TEST(VmadPolicy, ARuleIsForTheHostsNetworkUnlessItSaysOtherwise) {
    Namespace box;
    box.host = false;
    box.owner = 7;
    EXPECT_TRUE(Policy().of(7, kNoGroups, box).denied);
    EXPECT_TRUE(of("any rings 1").of(7, kNoGroups, box).denied);

    const Policy policy = of("user 7 in own rings 3\nany in host,no-such-name rings 1");
    EXPECT_EQ(policy.of(7, kNoGroups, box).rings, 3u);
    EXPECT_EQ(policy.of(7, kNoGroups).rings, 1u);
    EXPECT_TRUE(policy.of(8, kNoGroups, box).denied);
    // It belongs to another user.
    box.owner = 8;
    EXPECT_TRUE(policy.of(7, kNoGroups, box).denied);
    EXPECT_TRUE(of("any in *").of(7, kNoGroups).denied);
    EXPECT_NE(refused("any in host,").find("names or patterns"), std::string::npos);
}

TEST(VmadPolicy, EveryWord) {
    const Policy policy =
        of("group root interface eth*,ib0 port 80,5000-5999\trings 4 memory 64 flows 100 # all");
    const gid_t root[] = {0};
    const Allowance& a = policy.of(1, root);
    EXPECT_TRUE(a.has_interface("eth12"));
    EXPECT_TRUE(a.has_interface("ib0"));
    EXPECT_FALSE(a.has_interface("ib01"));
    EXPECT_TRUE(a.has_port(80));
    EXPECT_FALSE(a.has_port(81));
    EXPECT_TRUE(a.has_port(5000));
    EXPECT_TRUE(a.has_port(5999));
    EXPECT_FALSE(a.has_port(6000));
    EXPECT_EQ(a.rings, 4u);
    EXPECT_EQ(a.memory, 64u << 20);
    EXPECT_EQ(a.flows, 100u);
}

TEST(VmadPolicy, WhatIsWrongIsNamedWithItsLine) {
    EXPECT_EQ(refused("any\nwho rings 1"),
              "file:2: \"who\": a rule begins with user, group or any");
    EXPECT_EQ(refused("user no-such-user-here"), "file:1: there is no user \"no-such-user-here\"");
    EXPECT_EQ(refused("any speed 5"),
              "file:1: \"speed\": it is in, deny, interface, port, rings, memory, flows or share "
              "that a rule may have");
    for (const char* line :
         {"any port", "any port 0", "any port 65536", "any port 9-5", "any port 5,", "any port ,5",
          "any port 5-", "any port -5", "any port 1-2-3"})
        EXPECT_NE(refused(line).find("ports are numbers or ranges"), std::string::npos) << line;
    for (const char* line : {"any rings", "any rings -1", "any rings many", "any flows 1000000001",
                             "any memory 1048577", "any memory 1.5"})
        EXPECT_NE(refused(line).find("a number"), std::string::npos) << line;
}

TEST(VmadPolicy, NobodyMeetsOthersUnlessARuleSaysSo) {
    EXPECT_EQ(Policy().of(7, kNoGroups).share, "");
    Namespace box;
    box.host = false;
    box.owner = 7;
    EXPECT_EQ(Policy().of(7, kNoGroups, box).share, "");
    const Policy policy = of("user 7 in own share trade-1\nany share others rings 0");
    EXPECT_EQ(policy.of(7, kNoGroups, box).share, "trade-1");
    EXPECT_EQ(policy.of(7, kNoGroups).share, "others");
    EXPECT_EQ(policy.of(8, kNoGroups, box).share, "");
    for (const char* line : {"any share", "any share a,b", "any share a/b",
                             "any share a-name-that-is-longer-than-thirty-one"})
        EXPECT_NE(refused(line).find("a name of up to 31"), std::string::npos) << line;
}

TEST(VmadPolicy, AFileThatIsWrongChangesNothing) {
    Policy policy = of("any rings 2");
    std::string why;
    EXPECT_FALSE(policy.parse("any rings 3\nany rings x", "file", &why));
    EXPECT_EQ(policy.of(1, kNoGroups).rings, 2u);
    EXPECT_FALSE(policy.read("/nowhere/at/all", &why));
    EXPECT_EQ(why, "/nowhere/at/all: No such file or directory");
}

}  // namespace
}  // namespace vmad
