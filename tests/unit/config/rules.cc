// libvma.conf: grammar, errors, and the decision for every role, rule and address.
#include "config/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>

#include <map>

namespace vma {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

RuleContext context(const char* program = "prog", const char* id = "VMA_DEFAULT_APPLICATION_ID") {
    RuleContext c;
    c.file = "test.conf";
    c.program = program;
    c.application_id = id;
    return c;
}
Rules::Parsed parse(std::string_view text, const RuleContext& c = context()) {
    return Rules::parse(text, c);
}

// "1.2.3.4:80" or "[::1]:80".
Endpoint at(const std::string& text) {
    const size_t colon = text.rfind(':');
    Endpoint e;
    e.port = uint16_t(std::stoi(text.substr(colon + 1)));
    uint8_t bytes[16];
    if (text[0] == '[') {
        EXPECT_EQ(inet_pton(AF_INET6, text.substr(1, colon - 2).c_str(), bytes), 1) << text;
        e.addr = IpAddr::v6_bytes(bytes);
    } else {
        EXPECT_EQ(inet_pton(AF_INET, text.substr(0, colon).c_str(), bytes), 1) << text;
        e.addr = IpAddr::v4_bytes(bytes);
    }
    return e;
}

constexpr Role kRoles[] = {Role::tcp_server, Role::tcp_client, Role::udp_sender, Role::udp_receiver,
                           Role::udp_connect};

// A rule's endpoint against an address.
struct Match {
    const char* pattern;
    const char* address;
    bool fits;
};
constexpr Match kMatches[] = {
    {"*:*", "192.0.2.1:0", true},
    {"*:*", "255.255.255.255:65535", true},
    {"*:*", "[2001:db8::1]:80", true},
    {"*:80", "192.0.2.1:80", true},
    {"*:80", "192.0.2.1:81", false},
    {"*:80", "[2001:db8::1]:80", true},
    {"*:80-90", "192.0.2.1:79", false},
    {"*:80-90", "192.0.2.1:80", true},
    {"*:80-90", "192.0.2.1:90", true},
    {"*:80-90", "192.0.2.1:91", false},
    {"*:90-80", "192.0.2.1:85", false},
    {"*:0", "192.0.2.1:0", true},
    {"*:65535", "192.0.2.1:65535", true},
    {"192.0.2.1:*", "192.0.2.1:1", true},
    {"192.0.2.1:*", "192.0.2.2:1", false},
    {"192.0.2.1:*", "[::192.0.2.1]:1", false},
    {"192.0.2.0/24:*", "192.0.2.255:1", true},
    {"192.0.2.0/24:*", "192.0.3.0:1", false},
    {"192.0.2.77/24:*", "192.0.2.1:1", true},
    {"192.0.2.128/25:*", "192.0.2.127:1", false},
    {"192.0.2.128/25:*", "192.0.2.128:1", true},
    {"192.0.2.1/32:*", "192.0.2.1:1", true},
    {"192.0.2.1/33:*", "192.0.2.2:1", false},
    {"192.0.2.1/99:*", "192.0.2.1:1", true},
    {"128.0.0.0/1:*", "127.0.0.1:1", false},
    {"128.0.0.0/1:*", "224.0.0.1:1", true},
    {"0.0.0.0/0:*", "192.0.2.1:1", true},
    {"0.0.0.0/0:*", "[2001:db8::1]:1", false},
    {"224.0.0.0/4:5000", "239.1.2.3:5000", true},
    {"224.0.0.0/4:5000", "223.1.2.3:5000", false},
    {"[2001:db8::1]:*", "[2001:db8::1]:7", true},
    {"[2001:db8::1]:*", "[2001:db8::2]:7", false},
    {"[2001:db8::]/32:7", "[2001:db8:ffff::9]:7", true},
    {"[2001:db8::]/32:7", "[2001:db9::9]:7", false},
    {"[2001:db8::]/33:7", "[2001:db8:8000::9]:7", false},
    {"[::]/0:7", "[fe80::1]:7", true},
    {"[ff00::]/8:*", "[ff02::1]:9", true},
    {"[2001:db8::1]/200:*", "[2001:db8::1]:7", true},
    {"[::ffff:192.0.2.0]/120:*", "192.0.2.9:7", true},
};

struct TransportCase {
    const char* word;
    Transport transport;
    bool matches;
};
constexpr TransportCase kTransports[] = {
    {"os", Transport::os, true},  {"vma", Transport::vma, true}, {"sdp", Transport::sdp, false},
    {"sa", Transport::sa, false}, {"*", Transport::any, true},
};

bool expected_offload(const TransportCase& t, Role role, const Endpoint& e) {
    if (!t.matches || t.transport == Transport::vma) return true;
    if (t.transport == Transport::os) return false;
    return role == Role::tcp_server || (role == Role::udp_receiver && e.addr.is_multicast());
}

TEST(RulesDecision, EveryRoleTransportAndAddress) {
    int cases = 0;
    for (const Role rule_role : kRoles) {
        for (const TransportCase& t : kTransports) {
            for (const Match& m : kMatches) {
                const std::string text =
                    std::string("use ") + t.word + " " + role_name(rule_role) + " " + m.pattern;
                SCOPED_TRACE(text + " against " + m.address);
                const Rules::Parsed p = parse("\n" + text + "\n");
                ASSERT_TRUE(p.ok()) << p.errors[0].message;
                const Endpoint e = at(m.address);
                const Endpoint local = at("10.0.0.1:4000");
                for (const Role asked : kRoles) {
                    const bool hit = asked == rule_role && m.fits && t.matches;
                    for (const Endpoint* second : {static_cast<const Endpoint*>(nullptr), &local}) {
                        const Decision d = p.rules.decide(asked, e, second);
                        EXPECT_EQ(d.rule != nullptr, hit);
                        EXPECT_EQ(d.transport, hit ? t.transport : Transport::vma);
                        EXPECT_EQ(d.offload, !hit || expected_offload(t, asked, e));
                        EXPECT_EQ(d.line(), hit ? 2u : 0u);
                        EXPECT_EQ(d.text(), hit ? std::string_view(text) : "no rule");
                        ++cases;
                    }
                }
            }
        }
    }
    EXPECT_EQ(cases, int(5 * 5 * std::size(kMatches) * 5 * 2));
}

TEST(RulesDecision, SecondAddressIsForTcpClientAndUdpConnect) {
    const Endpoint remote = at("198.51.100.7:80");
    for (const Role role : kRoles) {
        const bool two = role == Role::tcp_client || role == Role::udp_connect;
        for (const Match& m : kMatches) {
            const std::string text =
                std::string("use os ") + role_name(role) + " 198.51.100.0/24:*:" + m.pattern;
            SCOPED_TRACE(text + " with local " + m.address);
            const Rules::Parsed p = parse(text);
            ASSERT_TRUE(p.ok()) << p.errors[0].message;
            const Endpoint local = at(m.address);
            EXPECT_EQ(p.rules.decide(role, remote, &local).offload, two && !m.fits);
            EXPECT_TRUE(p.rules.decide(role, at("198.51.101.7:80"), &local).offload);
            EXPECT_EQ(p.notes.empty(), two && std::string_view(m.pattern) != "*:90-80");
        }
        // Local side unknown: only a rule that takes any fits.
        EXPECT_FALSE(parse(std::string("use os ") + role_name(role) + " *:*:*:*")
                         .rules.decide(role, remote)
                         .offload);
        EXPECT_EQ(parse(std::string("use os ") + role_name(role) + " *:*:10.0.0.1:*")
                      .rules.decide(role, remote)
                      .offload,
                  two);
    }
}

TEST(RulesDecision, FirstMatchInTheListWins) {
    const auto p = parse(
        "use vma tcp_client 192.0.2.0/25:*\nuse os tcp_client 192.0.2.0/24:*\nuse os tcp_server "
        "*:*\n"
        "use vma tcp_client *:*\n");
    EXPECT_EQ(p.rules.decide(Role::tcp_client, at("192.0.2.1:1")).line(), 1u);
    EXPECT_EQ(p.rules.decide(Role::tcp_client, at("192.0.2.200:1")).line(), 2u);
    EXPECT_EQ(p.rules.decide(Role::tcp_client, at("192.0.3.1:1")).line(), 4u);
    EXPECT_EQ(p.rules.size(), 4u);
}

TEST(RulesBlocks, TheFirstBlockThatFitsDecidesAlone) {
    const char* text =
        "use os tcp_server *:1\n"  // implicit "* *"
        "application-id web* fast\nuse os tcp_server *:2\n"
        "application-id * *\nuse os tcp_server *:3\n";  // re-opens the implicit block
    const auto hit = [&](const RuleContext& c, int port) {
        return !parse(text, c)
                    .rules.decide(Role::tcp_server, at("10.0.0.1:" + std::to_string(port)))
                    .offload;
    };
    EXPECT_TRUE(hit(context("webserver", "fast"), 1));
    EXPECT_FALSE(hit(context("webserver", "fast"), 2));  // "* *" comes first
    EXPECT_TRUE(hit(context("webserver", "fast"), 3));

    const char* ordered =
        "application-id web* fast\nuse os tcp_server *:2\napplication-id * *\nuse os tcp_server "
        "*:3\n";
    const auto decides = [&](const char* program, const char* id, int port) {
        return !parse(ordered, context(program, id))
                    .rules.decide(Role::tcp_server, at("10.0.0.1:" + std::to_string(port)))
                    .offload;
    };
    EXPECT_TRUE(decides("webserver", "fast", 2));
    EXPECT_FALSE(decides("webserver", "fast", 3));
    EXPECT_FALSE(decides("webserver", "slow", 2));
    EXPECT_TRUE(decides("webserver", "slow", 3));
    EXPECT_TRUE(decides("webserver", "*", 2));  // the id * fits every block
    EXPECT_FALSE(decides("other", "fast", 2));
    EXPECT_TRUE(decides("other", "VMA_DEFAULT_APPLICATION_ID", 3));
}

TEST(RulesBlocks, NumbersAndPatternsAsWords) {
    const auto p =
        parse("application-id p[ab]?g 47\nuse os tcp_server *:*\n", context("paxg", "47"));
    ASSERT_TRUE(p.ok());
    EXPECT_FALSE(p.rules.decide(Role::tcp_server, at("10.0.0.1:1")).offload);
    EXPECT_FALSE(p.rules.application_id_unknown());
    const auto other =
        parse("application-id p[ab]?g 47\nuse os tcp_server *:*\n", context("paxg", "48"));
    EXPECT_TRUE(other.rules.decide(Role::tcp_server, at("10.0.0.1:1")).offload);
    EXPECT_TRUE(other.rules.application_id_unknown());
    EXPECT_FALSE(parse("application-id other *\n", context("paxg")).rules.application_id_unknown());
}

TEST(RulesEarly, BothListsMustSayOs) {
    const std::pair<const char*, bool> tcp[] = {
        {"", false},
        {"use os tcp_server *:*\n", false},
        {"use os tcp_client *:*\n", false},
        {"use os tcp_server *:*\nuse os tcp_client *:*\n", true},
        {"use os tcp_server *:*\nuse os tcp_client *:*:*:*\n", true},
        {"use os tcp_server *:*\nuse os tcp_client *:*:10.0.0.1:*\n", false},
        {"use os tcp_server *:1-65535\nuse os tcp_client *:*\n", false},
        {"use vma tcp_server *:80\nuse os tcp_server *:*\nuse os tcp_client *:*\n", false},
        {"use os tcp_server *:80\nuse os tcp_server *:*\nuse os tcp_client *:*\n", true},
        {"use os tcp_server *:*\nuse vma tcp_server *:80\nuse os tcp_client *:*\n", true},
        {"use vma tcp_server *:*\nuse os tcp_server *:*\nuse os tcp_client *:*\n", false},
        {"use sdp tcp_server *:*\nuse os tcp_server *:*\nuse os tcp_client *:*\n", true},
    };
    for (const auto& [text, os] : tcp)
        EXPECT_EQ(parse(text).rules.decide_early(IPPROTO_TCP), os ? Transport::os : Transport::vma)
            << text;
    const auto udp = parse("use os udp_receiver *:*\nuse os udp_sender *:*\n").rules;
    EXPECT_EQ(udp.decide_early(IPPROTO_UDP), Transport::os);
    EXPECT_EQ(udp.decide_early(IPPROTO_TCP), Transport::vma);
    EXPECT_EQ(
        parse("use os udp_receiver *:*\nuse os udp_connect *:*\n").rules.decide_early(IPPROTO_UDP),
        Transport::vma);
}

TEST(RulesGrammar, Accepted) {
    for (const char* text : {
             "",
             "\n",
             "\n\n\n",
             "# only a comment",
             "  \t\n",
             "#\n#\n",
             "use os tcp_server *:*",
             "use os tcp_server *:*\n",
             "use os tcp_server *:* # why\n",
             "use os tcp_server * : * : * : *",
             "use\tos\ttcp_server\t1 . 2 . 3 . 4 / 8 : 1 - 2",
             "use os tcp_server 1.2.3.4:1:5.6.7.8/9:10-11",
             "\n\nuse vma udp_connect *:53\n\n\n",
             "use os tcp_server *:*\r\nuse os tcp_client *:*\r\n",
             "application-id * *",
             "application-id a#b c#d\n",
             "log",
             "log destination stderr",
             "log destination ystderr",
             "log destination syslog",
             "log destination file /tmp/x",
             "log destination yfile /tmp/x\n",
             "log min-level 3",
             "log min-level 3 destination stderr min-level 0",
             "use * udp_receiver [::]/0:*",
         }) {
        const auto p = parse(text);
        EXPECT_TRUE(p.ok()) << text << "\n" << (p.ok() ? "" : p.errors[0].message);
    }
    EXPECT_EQ(parse("log min-level 3").rules.min_log_level(), 3);
    EXPECT_EQ(parse("").rules.min_log_level(), 9);
}

struct BadText {
    const char* text;
    uint32_t line, column;
    const char *expected, *found;
};
TEST(RulesGrammar, ErrorsNamePlaceAndExpectation) {
    const BadText table[] = {
        {"used os", 1, 1, "application-id, use or log", "\"used\""},
        {"Use os tcp_server *:*", 1, 1, "application-id, use or log", "\"Use\""},
        {"use", 1, 4, "a transport", "the end of the file"},
        {"use\n", 1, 4, "a transport", "the end of the line"},
        {"use tcp tcp_server *:*", 1, 5, "a transport", "\"tcp\""},
        {"use os udp *:*", 1, 8, "a role", "\"udp\""},
        {"use os TCP_SERVER *:*", 1, 8, "a role", "\"TCP_SERVER\""},
        {"use os tcp_server", 1, 18, "an address", "the end of the file"},
        {"use os tcp_server host:1", 1, 19, "an address", "\"host\""},
        {"use os tcp_server 1.2.3:1", 1, 24, "\".\"", "\":\""},
        {"use os tcp_server 1.2.3.4", 1, 26, "a port", "the end of the file"},
        {"use os tcp_server 1.2.3.x:1", 1, 25, "a number of the address", "\"x\""},
        {"use os tcp_server 1.2.3.4/:1", 1, 27, "a prefix length", "\":\""},
        {"use os tcp_server *", 1, 20, "\":\" and a port", "the end of the file"},
        {"use os tcp_server *:", 1, 21, "a port", "the end of the file"},
        {"use os tcp_server *:http", 1, 21, "a port", "\"http\""},
        {"use os tcp_server *:1-", 1, 23, "a port", "the end of the file"},
        {"use os tcp_server *:1 2", 1, 23, "second address", "\"2\""},
        {"use os tcp_client *:1:*", 1, 24, "a port", "the end of the file"},
        {"use os tcp_client *:1:*:*:*", 1, 26, "the end of the line", "\":\""},
        {"use os tcp_server 01.2.3.4:1", 1, 19, "an address", "(a leading zero)"},
        {"use os tcp_server *:080", 1, 21, "a port", "(a leading zero)"},
        {"use os tcp_server [::1:1", 1, 19, "an address", "\"[\""},
        {"use os tcp_server [fe80]:1", 1, 19, "an IPv6 address in brackets", "\"[fe80]\""},
        {"application-id", 1, 15, "a program name", "the end of the file"},
        {"application-id x", 1, 17, "an application id", "the end of the file"},
        {"application-id x y z", 1, 20, "the end of the line", "\"z\""},
        {"log destination", 1, 16, "a destination", "the end of the file"},
        {"log destination printer", 1, 17, "a destination", "\"printer\""},
        {"log destination file", 1, 21, "a file name", "the end of the file"},
        {"log min-level x", 1, 15, "a number", "\"x\""},
        {"log level 3", 1, 5, "destination, min-level", "\"level\""},
        {"\n\n  use os nothing *:*", 3, 10, "a role", "\"nothing\""},
        {"use os tcp_server *:1\n$", 2, 1, "application-id, use or log", "\"$\""},
    };
    for (const BadText& bad : table) {
        SCOPED_TRACE(bad.text);
        const auto p = parse(bad.text);
        ASSERT_EQ(p.errors.size(), 1u);
        EXPECT_EQ(p.errors[0].line, bad.line);
        EXPECT_EQ(p.errors[0].column, bad.column);
        EXPECT_TRUE(p.errors[0].stops);
        EXPECT_THAT(p.errors[0].message,
                    testing::StartsWith("test.conf:" + std::to_string(bad.line) + ":" +
                                        std::to_string(bad.column) + ": expected "));
        EXPECT_THAT(p.errors[0].message, HasSubstr(bad.expected));
        EXPECT_THAT(p.errors[0].message, HasSubstr(bad.found));
    }
}

TEST(RulesErrors, RulesBeforeTheErrorApply) {
    const auto p = parse(
        "use os tcp_server *:1\nuse os tcp_server *:2\nuse oss tcp_server *:3\nuse os tcp_server "
        "*:4\n");
    ASSERT_EQ(p.errors.size(), 1u);
    EXPECT_THAT(p.errors[0].message,
                HasSubstr("the 2 rules before it apply, the rest of the file is not read"));
    EXPECT_FALSE(p.rules.decide(Role::tcp_server, at("10.0.0.1:2")).offload);
    EXPECT_TRUE(p.rules.decide(Role::tcp_server, at("10.0.0.1:4")).offload);
}

TEST(RulesErrors, OutOfRangeLeavesOutOneRule) {
    for (const char* bad :
         {"256.0.0.1:*", "1.2.3.999:*", "*:65536", "*:1-70000", "99999999999999999999.0.0.0:1"}) {
        SCOPED_TRACE(bad);
        const auto p = parse(std::string("use os tcp_server ") + bad + "\nuse os tcp_server *:4\n");
        ASSERT_EQ(p.errors.size(), 1u);
        EXPECT_FALSE(p.errors[0].stops);
        EXPECT_THAT(p.errors[0].message, HasSubstr("is out of range, expected 0.."));
        EXPECT_EQ(p.rules.size(), 1u);
        EXPECT_EQ(p.rules.decide(Role::tcp_server, at("10.0.0.1:4")).line(), 2u);
    }
}

TEST(RulesNotes, SurprisingRulesAreNoted) {
    EXPECT_THAT(parse("use * tcp_server *:*").notes.at(0).text, HasSubstr("neither os nor vma"));
    EXPECT_THAT(parse("use sdp tcp_server *:*").notes.at(0).text, HasSubstr("never matches"));
    EXPECT_THAT(parse("use os tcp_server *:9-1").notes.at(0).text, HasSubstr("wrong order"));
    EXPECT_THAT(parse("use os tcp_server *:1:*:2").notes.at(0).text,
                HasSubstr("second one is not used"));
    EXPECT_THAT(parse("log min-level 1").notes.at(0).text, HasSubstr("VMA_TRACELEVEL"));
    EXPECT_THAT(parse("use os tcp_server *:1").notes, IsEmpty());
}

TEST(RulesAdd, GoesToTheHeadOfTheLastBlock) {
    const auto file = parse(
        "application-id other *\nuse os tcp_server *:1\napplication-id prog *\nuse os tcp_server "
        "*:5\n");
    const auto added = file.rules.add("use vma tcp_server *:5\nuse os tcp_client *:9");
    ASSERT_TRUE(added.ok());
    const Decision d = added.rules.decide(Role::tcp_server, at("10.0.0.1:5"));
    EXPECT_TRUE(d.offload);
    ASSERT_NE(d.rule, nullptr);
    EXPECT_EQ(d.line(), 0u);
    EXPECT_EQ(d.text(), "use vma tcp_server *:5");
    EXPECT_FALSE(added.rules.decide(Role::tcp_client, at("10.0.0.1:9")).offload);
    // The value it was made from is as before.
    EXPECT_FALSE(file.rules.decide(Role::tcp_server, at("10.0.0.1:5")).offload);
    // From now on the file is read in that order too.
    EXPECT_TRUE(added.rules.context().insert_at_head);
    EXPECT_EQ(added.rules.context().file, "test.conf");
    const auto again =
        parse("use os tcp_server *:5\nuse vma tcp_server *:5\n", added.rules.context());
    EXPECT_EQ(again.rules.decide(Role::tcp_server, at("10.0.0.1:5")).line(), 2u);
}

TEST(RulesAdd, ErrorsKeepWhatWasThere) {
    const auto file = parse("use os tcp_server *:5\n");
    const auto bad = file.rules.add("use oops");
    EXPECT_FALSE(bad.ok());
    EXPECT_THAT(bad.errors[0].message, testing::StartsWith("added rule:1:5: expected a transport"));
    EXPECT_EQ(bad.rules.size(), 1u);
    EXPECT_EQ(Rules().add("use os tcp_server *:5").rules.size(), 1u);
}

TEST(RulesTable, PrintsEveryRule) {
    EXPECT_EQ(Rules().table(), "no rules: everything is offloaded\n");
    const auto p = parse(
        "use os tcp_client 192.0.2.0/24:80:*:1000-2000\napplication-id x y\nuse vma udp_receiver "
        "[ff00::]/8:*\n");
    EXPECT_EQ(p.rules.table(),
              "application-id * *   <- decides for this program\n"
              "    use os tcp_client 192.0.2.0/24:80:*:1000-2000   (line 1)\n"
              "application-id x y\n"
              "    use vma udp_receiver [ff00::]/8:*   (line 3)\n");
}

// What table() prints of a pattern parses back to the same pattern.
TEST(RulesTable, PatternsRoundTrip) {
    for (const Match& m : kMatches) {
        const auto p = parse(std::string("use os tcp_server ") + m.pattern);
        const Decision d = p.rules.decide(Role::tcp_server, at(m.address));
        if (d.rule == nullptr) continue;
        const auto again = parse("use os tcp_server " + d.rule->first.to_text());
        ASSERT_TRUE(again.ok()) << d.rule->first.to_text();
        EXPECT_EQ(again.rules.decide(Role::tcp_server, at(m.address)).rule->first, d.rule->first);
    }
}

TEST(RulesReview, TellsWhatNeverMatches) {
    const auto p = parse(
        "use os tcp_server *:80\n"
        "use vma tcp_server 10.0.0.0/8:80\n"     // 1 takes it
        "use vma tcp_server 10.0.0.0/8:70-90\n"  // more ports than that
        "use sdp tcp_server *:*\n"               // takes nothing
        "use vma tcp_server *:*\n"
        "use os tcp_client 10.1.0.0/16:*:*:1-9\n"
        "use vma tcp_client 10.1.2.3:5:*:3\n"  // 6
        "use vma tcp_client 10.1.2.3:5\n"      // any local side
        "use vma udp_sender *:80\n"            // another list
        "application-id other *\nuse os tcp_server *:80\n");
    ASSERT_TRUE(p.ok());
    std::map<uint32_t, std::pair<RuleUse, uint32_t>> seen;
    for (const RuleReview& r : p.rules.review())
        seen[r.rule->line] = {r.use, r.by ? r.by->line : 0};
    const std::map<uint32_t, std::pair<RuleUse, uint32_t>> expected = {
        {1, {RuleUse::deciding, 0}}, {2, {RuleUse::covered, 1}},
        {3, {RuleUse::deciding, 0}}, {4, {RuleUse::other_transport, 0}},
        {5, {RuleUse::deciding, 0}}, {6, {RuleUse::deciding, 0}},
        {7, {RuleUse::covered, 6}},  {8, {RuleUse::deciding, 0}},
        {9, {RuleUse::deciding, 0}}, {11, {RuleUse::other_program, 0}}};
    EXPECT_EQ(seen, expected);
}

TEST(RulesReview, WhatCoversAPatternMatchesAllThatItMatches) {
    std::vector<EndpointPattern> patterns;
    for (const Match& m : kMatches) {
        const auto parsed = parse(std::string("use os tcp_server ") + m.pattern);
        for (const RuleReview& r : parsed.rules.review()) patterns.push_back(r.rule->first);
    }
    unsigned covered = 0;
    for (const EndpointPattern& wide : patterns)
        for (const EndpointPattern& narrow : patterns) {
            if (!wide.covers(narrow)) continue;
            covered++;
            for (const Match& m : kMatches)
                EXPECT_TRUE(!narrow.matches(at(m.address)) || wide.matches(at(m.address)))
                    << wide.to_text() << " and " << narrow.to_text() << " at " << m.address;
        }
    EXPECT_GT(covered, patterns.size());  // each covers itself, and some others
}

TEST(RulesReview, CountsWhatEachRuleDecided) {
    const auto p = parse("use os tcp_server *:80\nuse os tcp_server *:*\nuse os tcp_client *:*\n");
    const auto counts = [&] {
        std::vector<uint64_t> out;
        for (const RuleReview& r : p.rules.review()) out.push_back(r.rule->matches.count());
        return out;
    };
    p.rules.decide(Role::tcp_server, at("10.0.0.1:80"));
    p.rules.decide(Role::tcp_server, at("10.0.0.1:81"));
    p.rules.decide(Role::tcp_server, at("10.0.0.1:82"));
    EXPECT_THAT(counts(), testing::ElementsAre(1, 2, 0));
    EXPECT_EQ(p.rules.decide_early(IPPROTO_TCP), Transport::os);
    EXPECT_THAT(counts(), testing::ElementsAre(1, 3, 1));
    EXPECT_EQ(p.rules,
              parse("use os tcp_server *:80\nuse os tcp_server *:*\nuse os tcp_client *:*\n").rules)
        << "the counts are no part of the value";
}

}  // namespace
}  // namespace vma
