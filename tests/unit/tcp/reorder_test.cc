// Reorder: what it holds and reports, against a map of bytes, and what a search costs.
#include <map>

#include "stack/tcp/reorder.h"
#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

Packet text_packet(PacketPool& pool, uint32_t seq, const std::string& text) {
    Seg s;
    s.seq = seq;
    s.text = text;
    SegView v = in_seg(pool, s);
    text_of(*v.packet) = {{seq}, v.payload_offset, v.payload_len};
    return std::move(v.packet);
}

// Any segments, overlapping and repeated, with texts that tell their place: the queue holds each byte once, in order.
TEST(Reorder, HoldsWhatAMapOfBytesHolds) {
    TcpWorld world;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        Rng rng(seed);
        Reorder held;
        ReceiveQueue queue;
        std::map<uint32_t, char> bytes;
        const uint32_t base = uint32_t(rng.next());  // wraps for some
        uint32_t nxt = 0;
        const auto at = [](uint32_t i) { return char(i * 31 >> 3); };
        for (int step = 0; step < 1500; ++step) {
            const uint32_t start = nxt + 1 + uint32_t(rng.below(60000));
            const uint32_t len = 1 + uint32_t(rng.below(rng.below(4) ? 600 : 3000));
            std::string text;
            uint32_t fresh = 0;
            for (uint32_t i = start; i < start + len; ++i) {
                text += at(i);
                fresh += bytes.emplace(i, at(i)).second;
            }
            SackBlock duplicate;
            const bool taken = held.insert(text_packet(*world.pool, base + start, text), duplicate);
            EXPECT_TRUE(taken || fresh == 0);
            EXPECT_EQ(duplicate.left < duplicate.right, fresh < len);
            if (rng.below(100) == 0) {
                // The hole at `nxt` is filled.
                nxt = held.take_ready({base + bytes.begin()->first}, queue).v - base;
                std::string got(queue.bytes, 0);
                iovec iov{got.data(), got.size()};
                ASSERT_EQ(queue.peek(&iov, 1), got.size());
                queue.consume(uint32_t(got.size()));
                for (const char c : got) {
                    ASSERT_EQ(c, bytes.begin()->second);
                    bytes.erase(bytes.begin());
                }
                ASSERT_TRUE(bytes.empty() || bytes.begin()->first > nxt);
            }
            ASSERT_EQ(held.bytes, bytes.size());
        }
        held.clear();
        EXPECT_TRUE(held.packets.empty());
    }
}

// RFC 2018 gives the sender the choice of what to repeat: holes in any order must cost the same.
TEST(Reorder, SearchDoesNotGrowWithTheQueue) {
    TcpWorld world;
    constexpr uint32_t kFrames = 20000, kLen = 600;
    const std::string text(kLen, 'r');
    const std::pair<const char*, uint32_t (*)(uint32_t)> orders[] = {
        {"from the end", [](uint32_t i) { return kFrames - i; }},
        {"from both ends", [](uint32_t i) { return i & 1 ? i / 2 : kFrames - i / 2; }},
        {"scattered", [](uint32_t i) { return uint32_t(uint64_t(i) * 7919 % kFrames); }}};
    for (const auto& [name, place] : orders) {
        SCOPED_TRACE(name);
        Reorder held;
        for (uint32_t i = 0; i < kFrames; ++i) {
            SackBlock duplicate;
            // Every second one: neighbours never touch.
            ASSERT_TRUE(
                held.insert(text_packet(*world.pool, 1000 + 2 * kLen * place(i), text), duplicate));
        }
        EXPECT_EQ(held.frames, kFrames);
        EXPECT_LT(held.steps, 150ull * kFrames) << "half of the queue were " << kFrames / 2;
        held.clear();
    }
}

}  // namespace
}  // namespace vma::tcp
