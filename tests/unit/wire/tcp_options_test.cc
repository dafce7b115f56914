#include "wire/tcp_options.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace vma {
namespace {

TcpOptions random_options(Rng& rng) {
    TcpOptions o;
    if (rng.chance(1, 2)) o.has_mss = true, o.mss = uint16_t(rng.next() >> 20);
    if (rng.chance(1, 2)) o.has_wscale = true, o.wscale = uint8_t(rng.next() >> 20);
    o.sack_permitted = rng.chance(1, 2);
    if (rng.chance(1, 2)) {
        o.has_timestamps = true;
        o.ts_val = uint32_t(rng.next() >> 20);
        o.ts_ecr = uint32_t(rng.next() >> 20);
    }
    if (rng.chance(1, 3)) {
        o.has_fast_open = true;
        o.fast_open_len = uint8_t(rng.chance(1, 3) ? 0 : 4 + 2 * rng.below(7));
        for (int i = 0; i < o.fast_open_len; i++) o.fast_open[i] = uint8_t(rng.next() >> 20);
    }
    if (rng.chance(1, 2)) {
        o.sack_count = uint8_t(1 + rng.below(4));
        for (int i = 0; i < o.sack_count; i++)
            o.sack[i] = {{uint32_t(rng.next() >> 20)}, {uint32_t(rng.next() >> 20)}};
    }
    return o;
}

TEST(TcpOptions, RoundTripOrRefusal) {
    const uint64_t seed = 0x3001;
    Rng rng(seed);
    int written = 0, refused = 0;
    for (int i = 0; i < 20000; i++) {
        const TcpOptions o = random_options(rng);
        uint8_t bytes[40];
        auto n = emit_tcp_options(o, bytes);
        if (tcp_options_size(o) > 40) {
            ASSERT_EQ(n.error(), EMSGSIZE) << "seed " << seed << " round " << i;
            refused++;
            continue;
        }
        ASSERT_TRUE(n) << "seed " << seed << " round " << i;
        ASSERT_EQ(*n, tcp_options_size(o));
        ASSERT_EQ(*n % 4, 0u);
        TcpOptions back;
        ASSERT_EQ(parse_tcp_options(ByteView(bytes, *n), back), TcpOptionsStatus::ok)
            << "seed " << seed << " round " << i;
        ASSERT_EQ(back, o) << "seed " << seed << " round " << i;
        if (*n > 0) {
            ASSERT_EQ(emit_tcp_options(o, ByteSpan(bytes, *n - 1)).error(), EMSGSIZE);
        }
        written++;
    }
    EXPECT_GT(written, 1000);
    EXPECT_GT(refused, 1000);
}

TEST(TcpOptions, LinuxSynLayout) {
    TcpOptions o;
    o.has_mss = o.has_wscale = o.sack_permitted = o.has_timestamps = true;
    o.mss = 1460;
    o.wscale = 7;
    o.ts_val = 0x01020304;
    uint8_t bytes[40];
    ASSERT_EQ(*emit_tcp_options(o, bytes), 20u);
    const std::vector<uint8_t> want = {2, 4, 0x05, 0xb4, 4, 2, 8, 10, 1, 2,
                                       3, 4, 0,    0,    0, 0, 1, 3,  3, 7};
    EXPECT_EQ(std::vector<uint8_t>(bytes, bytes + 20), want);
}

TEST(TcpOptions, ThreeSackBlocksFitBesideTimestampsFourDoNot) {
    TcpOptions o;
    o.has_timestamps = true;
    o.sack_count = 3;
    EXPECT_EQ(tcp_options_size(o), 40u);
    uint8_t bytes[40];
    EXPECT_TRUE(emit_tcp_options(o, bytes));
    o.sack_count = 4;
    EXPECT_EQ(emit_tcp_options(o, bytes).error(), EMSGSIZE);
    o.has_timestamps = false;
    EXPECT_EQ(*emit_tcp_options(o, bytes), 36u);
    o.sack_count = 5;
    EXPECT_EQ(emit_tcp_options(o, bytes).error(), EINVAL);
}

TEST(TcpOptions, ImpossibleCookieLengths) {
    uint8_t bytes[40];
    TcpOptions o;
    o.has_fast_open = true;
    for (uint8_t len : {1, 2, 3, 5, 17, 18, 255}) {
        o.fast_open_len = len;
        EXPECT_EQ(emit_tcp_options(o, bytes).error(), EINVAL) << int(len);
    }
}

struct Row {
    const char* name;
    std::vector<uint8_t> bytes;
    TcpOptionsStatus status;
    bool mss, wscale;  // what must have been read all the same
};

TEST(TcpOptions, BadInput) {
    using S = TcpOptionsStatus;
    const Row rows[] = {
        {"empty", {}, S::ok, false, false},
        {"end stops", {0, 2, 4, 5, 0xb4}, S::ok, false, false},
        {"nops", {1, 1, 1, 1}, S::ok, false, false},
        {"unknown skipped", {200, 4, 9, 9, 2, 4, 5, 0xb4}, S::ok, true, false},
        {"unknown of two bytes", {200, 2, 2, 4, 5, 0xb4}, S::ok, true, false},
        {"experimental fast open is unknown", {254, 4, 0xf9, 0x89, 3, 3, 7}, S::ok, false, true},
        {"kind without length", {2, 4, 5, 0xb4, 3}, S::malformed, true, false},
        {"length 0", {2, 4, 5, 0xb4, 3, 0, 7}, S::malformed, true, false},
        {"length 1", {3, 1, 7, 2, 4, 5, 0xb4}, S::malformed, false, false},
        {"length beyond the end", {3, 3, 7, 2, 4, 5}, S::malformed, false, true},
        {"length 255", {200, 255, 1, 1}, S::malformed, false, false},
        {"mss of wrong length", {2, 3, 5, 3, 3, 7}, S::ignored, false, true},
        {"wscale of wrong length", {3, 4, 7, 7, 2, 4, 5, 0xb4}, S::ignored, true, false},
        {"sack permitted of wrong length", {4, 3, 0, 2, 4, 5, 0xb4}, S::ignored, true, false},
        {"timestamps of wrong length",
         {8, 9, 0, 0, 0, 0, 0, 0, 0, 3, 3, 7},
         S::ignored,
         false,
         true},
        {"sack without blocks", {5, 2, 3, 3, 7}, S::ignored, false, true},
        {"sack with half a block", {5, 6, 0, 0, 0, 0, 3, 3, 7}, S::ignored, false, true},
        {"odd cookie", {34, 5, 1, 2, 3, 3, 3, 7}, S::ignored, false, true},
        {"cookie of two bytes", {34, 4, 1, 2, 3, 3, 7}, S::ignored, false, true},
    };
    for (const Row& row : rows) {
        // An exact heap copy, so that ASan sees one byte too far.
        std::vector<uint8_t> exact(row.bytes);
        exact.shrink_to_fit();
        TcpOptions o;
        o.has_mss = true;  // must be cleared
        EXPECT_EQ(parse_tcp_options(exact, o), row.status) << row.name;
        EXPECT_EQ(o.has_mss, row.mss) << row.name;
        EXPECT_EQ(o.has_wscale, row.wscale) << row.name;
        EXPECT_EQ(o.sack_count, 0) << row.name;
    }
}

TEST(TcpOptions, ShortcutEqualsTheWalk) {
    const uint8_t shortcut[] = {1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6};
    const uint8_t walked[] = {8, 10, 0, 0, 0, 5, 0, 0, 0, 6, 1, 1};
    TcpOptions a, b;
    EXPECT_EQ(parse_tcp_options(shortcut, a), TcpOptionsStatus::ok);
    EXPECT_EQ(parse_tcp_options(walked, b), TcpOptionsStatus::ok);
    EXPECT_EQ(a, b);
    EXPECT_EQ(a.ts_val, 5u);
    EXPECT_EQ(a.ts_ecr, 6u);
}

TEST(TcpOptions, GarbageStaysInBounds) {
    const uint64_t seed = 0x3002;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const uint8_t kinds[] = {0, 1, 2, 3, 4, 5, 8, 34, 254};
    for (int i = 0; i < 50000; i++) {
        std::vector<uint8_t> b(rng.below(41));
        for (auto& x : b)
            x = rng.chance(1, 2) ? kinds[rng.below(9)]
                                 : uint8_t(rng.below(rng.chance(1, 2) ? 12 : 256));
        TcpOptions o;
        (void)parse_tcp_options(b, o);
        ASSERT_LE(o.sack_count, 4);
        ASSERT_LE(o.fast_open_len, 16);
        // What was understood can be said again, unless repeats in the input collected more than 40
        // bytes.
        uint8_t out[40];
        auto n = emit_tcp_options(o, out);
        if (n) {
            TcpOptions back;
            ASSERT_EQ(parse_tcp_options(ByteView(out, *n), back), TcpOptionsStatus::ok);
            ASSERT_EQ(back, o);
        } else {
            ASSERT_EQ(n.error(), EMSGSIZE);
        }
    }
}

}  // namespace
}  // namespace vma
