#include "dev/shm/flow_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support/frames.h"

namespace vma::test {
namespace {

using namespace shm;

TEST(ShmFlowTable, DoesWhatAMapDoes) {
    const uint32_t seed = 5;
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    FlowTable table;
    table.set_secret(random(), random());
    std::map<std::pair<uint64_t, uint64_t>, uint32_t> oracle;
    for (int i = 0; i < 60000; ++i) {
        // Few keys, so that they come again; the table grows and shrinks.
        const uint32_t most = i / 10000 % 2 ? 40 : 4000;
        const PackedFlow key = PackedFlow::of(6, 1, uint16_t(random() % most), 2, 9);
        const auto at = std::pair(key.addresses, key.rest);
        const auto found = oracle.find(at);
        switch (random() % 5) {
            case 0:
            case 1:
                ASSERT_EQ(table.insert(key, uint32_t(i % 7)).error(),
                          found == oracle.end() ? 0 : EEXIST);
                if (found == oracle.end()) oracle[at] = uint32_t(i % 7);
                break;
            case 2:
                ASSERT_EQ(table.erase(key), found != oracle.end());
                if (found != oracle.end()) oracle.erase(found);
                break;
            case 3:
                if (random() % 500) break;
                table.erase_all(uint32_t(i % 7));
                std::erase_if(oracle, [&](const auto& e) { return e.second == uint32_t(i % 7); });
                break;
            default: {
                const uint32_t* value = table.find(key);
                ASSERT_EQ(value != nullptr, found != oracle.end());
                if (value) {
                    ASSERT_EQ(*value, found->second);
                }
            }
        }
        ASSERT_EQ(table.size(), oracle.size());
    }
    for (const auto& [key, value] : oracle) {
        const uint32_t* found = table.find({key.first, key.second});
        ASSERT_NE(found, nullptr);
        EXPECT_EQ(*found, value);
    }
}

TEST(ShmFlow, OfAFrameBothWays) {
    FrameSpec s;
    s.src = {IpAddr::v4(10, 0, 0, 1), 1000};
    s.dst = {IpAddr::v4(10, 0, 0, 2), 2000};
    for (unsigned options : {0u, 3u, 10u}) {
        s.ip_option_words = options;
        const Frame f = build_frame(s);
        const uint32_t l3 = uint32_t(f.bytes.size() - 14);
        PackedFlow in, out;
        ASSERT_TRUE(flow_of_frame(f.view(), l3, Toward::us, in));
        ASSERT_TRUE(flow_of_frame(f.view().first(f.head), l3, Toward::them, out));
        EXPECT_EQ(in, PackedFlow::of(17, 0x0a000002, 2000, 0x0a000001, 1000));
        EXPECT_EQ(out, PackedFlow::of(17, 0x0a000001, 1000, 0x0a000002, 2000));
        EXPECT_EQ(in.any_remote(), PackedFlow::of(17, 0x0a000002, 2000, 0, 0));
        EXPECT_EQ(in.any_local(), PackedFlow::of(17, 0, 0, 0x0a000001, 1000));
    }
}

TEST(ShmFlow, AnythingElseIsNone) {
    FrameSpec s;
    s.src = {IpAddr::v4(10, 0, 0, 1), 1000};
    s.dst = {IpAddr::v4(10, 0, 0, 2), 2000};
    const Frame good = build_frame(s);
    auto flows = [](std::vector<uint8_t> b) {
        PackedFlow flow;
        // An exact allocation, so that a sanitizer sees a look beyond it.
        const std::vector<uint8_t> exact(b.begin(), b.end());
        return flow_of_frame({exact.data(), exact.size()}, uint32_t(exact.size() - 14), Toward::us,
                             flow);
    };
    EXPECT_TRUE(flows(good.bytes));
    for (size_t n = 14; n < good.bytes.size(); ++n)
        EXPECT_FALSE(flows({good.bytes.begin(), good.bytes.begin() + long(n)})) << n;
    struct Change {
        size_t at;
        uint8_t value;
    };
    for (const Change& c :
         {Change{12, 0x86}, Change{12, 0x81}, Change{14, 0x65}, Change{14, 0x44}, Change{14, 0x4f},
          Change{20, 0x20}, Change{21, 1}, Change{23, 1}, Change{23, 132}, Change{16, 0xff}}) {
        std::vector<uint8_t> b = good.bytes;
        b[c.at] = c.value;
        EXPECT_FALSE(flows(b)) << c.at << " = " << int(c.value);
    }
}

}  // namespace
}  // namespace vma::test
