#include "dev/packet/segment.h"

#include <gtest/gtest.h>

#include "support/frames.h"

namespace vma::test {
namespace {

FrameSpec tcp_spec(uint32_t payload) {
    FrameSpec s;
    s.src = {IpAddr::v4(10, 0, 0, 1), 1000};
    s.dst = {IpAddr::v4(10, 0, 0, 2), 2000};
    s.protocol = IPPROTO_TCP;
    s.payload = payload;
    s.sequence = 0xfffffc00;  // wraps inside
    s.finished = false;
    return s;
}

// Each piece equals the frame that the test's own builder makes for that part of the payload.
void expect_cut(const FrameSpec& spec, uint16_t size, Gso gso) {
    Frame whole = build_frame(spec);
    Segmenter cut(whole.segmented(size, gso));
    ASSERT_TRUE(cut.ok());
    uint32_t expected_at = 0, index = 0;
    while (!cut.done()) {
        uint8_t head[Segmenter::kMostHeadBytes];
        uint32_t at, len;
        const uint32_t n = cut.next(head, &at, &len);
        ASSERT_EQ(n, whole.head);
        ASSERT_EQ(at, expected_at);
        const bool last = at + len == spec.payload;
        ASSERT_EQ(len, last ? spec.payload - at : size);
        FrameSpec part = spec;
        part.payload = len;
        part.sequence += at;
        if (!last) part.tcp_flags &= uint8_t(~0x09);  // FIN, PSH
        if (index) part.tcp_flags &= uint8_t(~0x80);  // CWR
        Frame want = build_frame(part);
        uint8_t* ip = &want.bytes[14];
        store_be16(ip + 4, uint16_t(index));
        store_be16(ip + 10, 0);
        store_be16(ip + 10, uint16_t(~add_words(ip, want.l4 - 14u, 0)));
        EXPECT_EQ(std::memcmp(head, want.bytes.data(), n), 0) << "segment " << index;
        expected_at += len;
        ++index;
    }
    EXPECT_EQ(expected_at, spec.payload);
}

TEST(segmenter, tcp_segments_have_their_own_numbers_flags_and_sums) {
    FrameSpec s = tcp_spec(5 * 1448 + 3);
    s.tcp_flags = 0x10 | 0x80 | 0x08 | 0x01;
    expect_cut(s, 1448, Gso::tcp_v4);
    s.ip_option_words = 3;
    expect_cut(s, 536, Gso::tcp_v4);
    expect_cut(tcp_spec(1448), 1448, Gso::tcp_v4);
    expect_cut(tcp_spec(2 * 1448), 1448, Gso::tcp_v4);
}

TEST(segmenter, udp_segments_are_datagrams) {
    FrameSpec s = tcp_spec(10500);
    s.protocol = IPPROTO_UDP;
    expect_cut(s, 1000, Gso::udp_l4);
}

TEST(segmenter, headers_that_do_not_fit_the_type_are_refused) {
    Frame f = build_frame(tcp_spec(3000));
    EXPECT_FALSE(Segmenter(f.segmented(0, Gso::tcp_v4)).ok());
    EXPECT_FALSE(Segmenter(f.segmented(1448, Gso::tcp_v6)).ok());
    EXPECT_FALSE(Segmenter(f.segmented(1448, Gso::udp_l4)).ok());
    EXPECT_FALSE(Segmenter(f.plain(true)).ok());
    f.bytes[14] = 0x43;  // IP header of 12 bytes
    EXPECT_FALSE(Segmenter(f.segmented(1448, Gso::tcp_v4)).ok());
    Frame g = build_frame(tcp_spec(3000));
    g.bytes[46] = 0xf0;  // TCP header of 60 bytes, 20 are there
    EXPECT_FALSE(Segmenter(g.segmented(1448, Gso::tcp_v4)).ok());
}

}  // namespace
}  // namespace vma::test
