// read_segment(write_head(x)) = x.
#include "stack/tcp/segment_io.h"

#include "support/tcp_peer.h"

namespace vma::tcp {
namespace {

TEST(SegmentIo, RoundTrip) {
    Conn c;
    c.cfg.timestamps = true;
    connect(c.t, c.params(), c.cfg, c.now);
    SegmentPlan p;
    ASSERT_TRUE(next_segment(c.t, c.now, p));
    uint8_t frame[64] = {};
    const uint32_t n = write_head(p.head, 4000, 80, frame);
    ASSERT_EQ(n, 40u);  // as Linux: MSS, SACK-permitted, timestamps, NOP, scale
    std::memcpy(frame + n, "abc", 3);
    auto view = parse_tcp({frame, n + 3});
    ASSERT_TRUE(view.ok());
    EXPECT_EQ(view->header.src_port, 4000);
    SegView seg;
    read_segment(*view, 14 + 20 + n, 0, seg);
    EXPECT_EQ(seg.seq.v, 1000u);
    EXPECT_EQ(seg.flags, kSyn);
    EXPECT_EQ(seg.opt, p.head.opt);
    EXPECT_EQ(seg.payload_len, 3u);
    EXPECT_EQ(seg.len(), 4u);
    EXPECT_EQ(seg.payload_offset, 74u);
    EXPECT_EQ(write_head(p.head, 1, 2, ByteSpan(frame, 30)), 0u);
}

TEST(SegmentIo, EverySegmentFitsItsHeader) {
    // Timestamps with three SACK blocks are the most: 40 bytes of options.
    Conn c;
    c.cfg.timestamps = c.stamps = true;
    c.established();
    for (uint32_t i = 0; i < 6; ++i) c.recv({5101 + 100 * i, 1001, kAck, "x"});
    c.recv({5101, 1001, kAck, "x"});
    c.send("text");
    SegmentPlan p;
    while (next_segment(c.t, c.now, p)) {
        uint8_t head[60];
        const uint32_t n = write_head(p.head, 1, 2, head);
        EXPECT_GE(n, 20u);
        EXPECT_LE(n, 60u);
        EXPECT_LE(n + p.payload_len, 1480u);
    }
}

}  // namespace
}  // namespace vma::tcp
