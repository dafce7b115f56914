// PreparedDatagram: whatever has been replaced, it is the frame that emit_udp_datagram() makes of the same text.
#include "stack/prepared_datagram.h"

#include "unit/stack/udp_fixture.h"

namespace vma::test {
namespace {

Bytes frame_of(ByteView head, ByteView text) {
    Bytes f(head.begin(), head.end());
    f.insert(f.end(), text.begin(), text.end());
    return f;
}

TEST(PreparedDatagram, PatchedIsWhatIsBuiltAnew) {
    const uint64_t seed = 0x2411;
    Rng rng(seed);
    for (int round = 0; round < 500; round++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
        UdpTemplateParams params;
        params.src = uint32_t(rng.next() >> 8);
        params.dst = kPeerIp;
        params.src_port = kOurPort;
        params.dst_port = kPeerPort;
        params.has_vlan = rng.chance(1, 4);
        params.no_checksum = rng.chance(1, 6);
        const UdpTemplate head(params);
        const UdpChecksum mode = rng.chance(1, 3) ? UdpChecksum::offload : UdpChecksum::complete;
        Bytes text = pattern(rng.below(80), rng.next());
        Bytes same = text;
        PreparedDatagram prepared;
        prepared.set_text(text);
        ASSERT_TRUE(prepared.prepare(head, mode));
        for (int patch = 0; patch < 8; patch++) {
            const size_t at = rng.below(uint32_t(text.size()) + 1);
            // Zeros and ones besides, which make sums of 0 and of all ones.
            Bytes bytes = pattern(rng.below(uint32_t(text.size() - at) + 1), rng.next());
            if (rng.chance(1, 3)) std::fill(bytes.begin(), bytes.end(), rng.chance(1, 2) ? 0 : 255);
            ASSERT_TRUE(prepared.patch(at, bytes));
            std::copy(bytes.begin(), bytes.end(), same.begin() + long(at));
            const auto id = uint16_t(rng.next());
            const iovec iov{same.data(), same.size()};
            uint8_t fresh[kUdpMaxHead];
            const auto built =
                emit_udp_datagram(head, mode, {&iov, 1}, uint32_t(same.size()), id, fresh);
            ASSERT_TRUE(built);
            ASSERT_EQ(frame_of(prepared.head(id), prepared.text()),
                      frame_of({fresh, built->size}, same));
            ASSERT_EQ(prepared.layout().csum_start, built->csum_start);
            ASSERT_EQ(prepared.layout().csum_offset, built->csum_offset);
        }
    }
}

// One of these texts has a checksum of 0, which stands for "none" on the wire.
TEST(PreparedDatagram, NoneIsNeverMeant) {
    UdpTemplateParams params;
    params.src = kOurIp;
    params.dst = kPeerIp;
    params.src_port = kOurPort;
    params.dst_port = kPeerPort;
    const UdpTemplate head(params);
    Bytes text(2, 0);
    PreparedDatagram prepared;
    prepared.set_text(text);
    ASSERT_TRUE(prepared.prepare(head, UdpChecksum::complete));
    unsigned ones = 0;
    for (uint32_t word = 0; word < 65536; word++) {
        const uint8_t bytes[2] = {uint8_t(word >> 8), uint8_t(word)};
        ASSERT_TRUE(prepared.patch(0, bytes));
        const uint16_t field = load_be16(prepared.head(0).data() + 40);
        ASSERT_NE(field, 0);
        ones += field == 0xffff;
    }
    EXPECT_GE(ones, 1u);
}

TEST(PreparedDatagram, NothingBeyondTheText) {
    Bytes text = pattern(10, 1);
    const Bytes before = text;
    PreparedDatagram prepared;
    prepared.set_text(text);
    const Bytes three(3, 7);
    EXPECT_FALSE(prepared.patch(8, three));
    EXPECT_FALSE(prepared.patch(11, {}));
    EXPECT_FALSE(prepared.patch(SIZE_MAX, three));
    EXPECT_TRUE(prepared.patch(10, {}));
    EXPECT_EQ(text, before);
    Bytes much(kUdpMaxPayload4 + 1);
    prepared.set_text(much);
    EXPECT_FALSE(prepared.prepare(UdpTemplate(), UdpChecksum::complete));
}

}  // namespace
}  // namespace vma::test
