// One message, one segment (messages.h).
#include "stack/tcp/snapshot.h"
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

struct Messenger : Conn {
    explicit Messenger(uint32_t max_gso = 0) {
        cfg.messages = true;
        cfg.max_gso_bytes = max_gso;
        established(1000);
    }
    size_t message(const std::string& text) {
        const size_t n = send(text);
        end_message(t);
        return n;
    }
    void expect_texts(const std::vector<std::string>& wanted) {
        std::vector<std::string> got;
        for (const Seg& s : pull_all()) {
            got.push_back(s.text);
            EXPECT_TRUE(s.has(kPsh) || s.text.size() == 1000) << s.text.size();
        }
        EXPECT_EQ(got, wanted);
    }
};

const std::string kLong(500, 'l');

TEST(Messages, EachInASegmentOfItsOwn) {
    for (const uint32_t max_gso : {0u, 65536u}) {
        Messenger c(max_gso);
        for (const char* text : {"a", "bb", "ccc"}) c.message(text);
        c.message(kLong);
        c.expect_texts({"a", "bb", "ccc", kLong});  // whatever Nagle's rule says
    }
    Conn plain;
    plain.established(1000);
    for (const char* text : {"a", "bb", "ccc"}) plain.send(text);
    ASSERT_EQ(plain.pull_all().size(), 1u);
}

TEST(Messages, LongerThanASegment) {
    Messenger c;
    c.message(std::string(2500, 'x'));
    c.message("y");
    c.expect_texts({std::string(1000, 'x'), std::string(1000, 'x'), std::string(500, 'x'), "y"});
}

TEST(Messages, WrittenInPieces) {
    Messenger c;
    c.send("be");
    c.expect_texts({});
    c.send("ginning");
    c.cfg.cork = c.t.cfg.cork = true;
    c.message("");
    c.message("next");
    c.expect_texts({"beginning", "next"});
    c.send(std::string(1500, 'x'));
    c.expect_texts({std::string(1000, 'x')});
    c.message("y");
    c.expect_texts({std::string(500, 'x') + "y"});
}

TEST(Messages, OneWithoutAnEndLeavesInTheEnd) {
    Messenger c;
    c.send("half");
    c.expect_texts({});
    std::vector<Seg> out;
    c.pass(Duration::seconds(3), &out);
    ASSERT_FALSE(out.empty());
    EXPECT_EQ(out[0].text, "half");
}

TEST(Messages, FinFollowsTheLast) {
    Messenger c;
    c.message("a");
    c.message("b");
    shutdown_write(c.t, c.now, c.fresh());
    const auto out = c.pull_all();
    ASSERT_EQ(out.size(), 2u);
    EXPECT_EQ(out[0].text, "a");
    EXPECT_FALSE(out[0].has(kFin));
    EXPECT_EQ(out[1].text, "b");
    EXPECT_TRUE(out[1].has(kFin));
}

TEST(Messages, RepeatedAsTheyWere) {
    Messenger c;
    for (const char* text : {"a", "bb", "ccc"}) c.message(text);
    c.expect_texts({"a", "bb", "ccc"});
    std::vector<Seg> out;
    c.pass(Duration::seconds(5), &out);
    ASSERT_GE(out.size(), 2u);
    for (const Seg& s : out)
        EXPECT_TRUE(s.text == "a" || s.text == "bb" || s.text == "ccc") << s.text;
}

// A window that a message does not fit is waited for; one that stays too small gets it in pieces.
TEST(Messages, WaitForTheWindow) {
    Messenger c;
    c.recv({5001, 1001, kAck, "", 100});
    c.message(std::string(80, 'a'));
    c.message(std::string(80, 'b'));
    c.expect_texts({std::string(80, 'a')});
    c.recv({5001, 1081, kAck, "", 60});
    c.expect_texts({});
    c.recv({5001, 1081, kAck, "", 90});
    c.expect_texts({std::string(80, 'b')});
    c.recv({5001, 1161, kAck, "", 40});
    c.message(std::string(50, 'c'));
    c.expect_texts({});
    std::vector<Seg> out;
    c.pass(Duration::seconds(3), &out);
    std::string text;
    for (const Seg& s : out) text += s.text;
    EXPECT_EQ(text.substr(0, 40), std::string(40, 'c'));
}

TEST(Messages, SoManyWait) {
    Messenger c;
    c.recv({5001, 1001, kAck, "", 0});
    for (uint32_t i = 0; i < MessageMarks::kMost; i++) ASSERT_EQ(c.message("m"), 1u) << i;
    EXPECT_EQ(c.message("m"), 0u);
    EXPECT_FALSE(writable(c.t));
    c.recv({5001, 1001, kAck, "", 600});
    EXPECT_EQ(c.pull_all().size(), 600u);
    EXPECT_TRUE(writable(c.t));
    EXPECT_EQ(c.message("m"), 1u);
}

TEST(Messages, SetAndUnsetWhileTextWaits) {
    Conn c;
    c.established(1000);
    c.send("a");
    ASSERT_EQ(c.pull_all().size(), 1u);
    c.send("waits");  // for the acknowledgement
    ASSERT_TRUE(c.pull_all().empty());
    c.t.cfg.messages = true;
    config_changed(c.t, c.now, c.fresh());
    c.send("new");
    end_message(c.t);
    const auto out = c.pull_all();
    ASSERT_EQ(out.size(), 2u);
    EXPECT_EQ(out[0].text, "waits");
    EXPECT_EQ(out[1].text, "new");
    c.send("held");
    c.t.cfg.messages = false;
    c.t.cfg.nodelay = true;
    config_changed(c.t, c.now, c.fresh());
    c.send("and more");
    const auto rest = c.pull_all();
    ASSERT_EQ(rest.size(), 1u);
    EXPECT_EQ(rest[0].text, "heldand more");
}

TEST(Messages, GoAlongWithTheConnection) {
    Messenger c;
    c.recv({5001, 1001, kAck, "", 0});
    for (const char* text : {"a", "bb"}) c.message(text);
    const auto snapshot = export_snapshot(c.t, c.now);
    ASSERT_TRUE(snapshot);
    std::string bytes(3, 0);
    export_unacked(c.t, snapshot->snd_una, bytes.data(), 3);
    Conn there;
    ASSERT_TRUE(import_snapshot(there.t, *snapshot,
                                {reinterpret_cast<const uint8_t*>(bytes.data()), 3}, {}, c.t.cfg,
                                *there.world.memory, *there.world.pool, c.now));
    carry_over(there.t, c.t);
    there.now = c.now;
    there.recv({5001, 1001, kAck, "", 1000});
    std::vector<std::string> got;
    for (const Seg& s : there.pull_all()) got.push_back(s.text);
    EXPECT_EQ(got, (std::vector<std::string>{"a", "bb"}));
}

}  // namespace
}  // namespace vma::tcp
