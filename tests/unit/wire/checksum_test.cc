#include "wire/checksum.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace vma {
namespace {

// The definition, byte by byte (RFC 1071 section 1), as the oracle.
uint16_t naive(const std::vector<uint8_t>& b) {
    uint32_t s = 0;
    for (size_t i = 0; i < b.size(); i++) s += i % 2 == 0 ? uint32_t(b[i]) << 8 : b[i];
    while (s >> 16) s = (s & 0xffff) + (s >> 16);
    return uint16_t(~s);
}

std::vector<uint8_t> random_bytes(Rng& rng, size_t n) {
    std::vector<uint8_t> b(n);
    const bool extreme = rng.chance(1, 4);  // long runs of ff and 00 exercise the carries
    for (auto& x : b) x = extreme ? (rng.chance(1, 8) ? 0 : 0xff) : uint8_t(rng.next() >> 32);
    return b;
}

TEST(Checksum, Rfc1071Example) {
    const uint8_t b[] = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
    Checksum c;
    c.add(b);
    EXPECT_EQ(c.sum(), 0xddf2);
    EXPECT_EQ(c.finish(), 0x220d);
}

TEST(Checksum, EmptyIsAllOnes) { EXPECT_EQ(checksum({}), 0xffff); }

TEST(Checksum, EqualsTheDefinitionAtEveryLengthAndAlignment) {
    const uint64_t seed = 0x1001;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    for (size_t n = 0; n < 200; n++) {
        for (size_t shift = 0; shift < 8; shift++) {
            std::vector<uint8_t> b = random_bytes(rng, n);
            std::vector<uint8_t> moved(shift, 0xaa);
            moved.insert(moved.end(), b.begin(), b.end());
            ASSERT_EQ(checksum(ByteView(moved).subspan(shift)), naive(b))
                << "length " << n << " shift " << shift;
        }
    }
}

TEST(Checksum, LargestPacketOfOnes) {
    std::vector<uint8_t> b(65535, 0xff);
    EXPECT_EQ(checksum(b), naive(b));
}

TEST(Checksum, PiecesOfOddLengthsCombine) {
    const uint64_t seed = 0x1002;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    for (int round = 0; round < 500; round++) {
        std::vector<uint8_t> b = random_bytes(rng, rng.below(3000));
        std::vector<iovec> iov;
        for (size_t at = 0; at < b.size();) {
            const size_t n = std::min<size_t>(b.size() - at, rng.below(rng.chance(1, 2) ? 7 : 700));
            iov.push_back({b.data() + at, n});  // zero lengths included
            at += n;
        }
        Checksum c;
        c.add_iovecs(iov.data(), iov.size());
        ASSERT_EQ(c.finish(), naive(b)) << "round " << round;
    }
}

TEST(Checksum, NumbersCountAsBigEndianBytes) {
    Checksum c;
    c.add_be16(0x1234);
    c.add_be32(0xdeadbeef);
    EXPECT_EQ(c.finish(), naive({0x12, 0x34, 0xde, 0xad, 0xbe, 0xef}));
}

TEST(Checksum, PseudoHeaderV4) {
    Checksum c;
    c.add_pseudo_v4(0xc0a80001, 0xc0a800c7, 17, 0x0b5e);
    EXPECT_EQ(c.finish(), naive({0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7, 0, 17, 0x0b, 0x5e}));
    Checksum d;
    d.add_pseudo(IpAddr::v4(192, 168, 0, 1), IpAddr::v4(192, 168, 0, 199), 17, 0x0b5e);
    EXPECT_EQ(d.finish(), c.finish());
}

TEST(Checksum, PseudoHeaderV6) {
    std::vector<uint8_t> bytes;
    uint8_t src[16], dst[16];
    for (int i = 0; i < 16; i++) src[i] = uint8_t(0x20 + i), dst[i] = uint8_t(0xf0 - i);
    bytes.insert(bytes.end(), src, src + 16);
    bytes.insert(bytes.end(), dst, dst + 16);
    for (uint8_t x : {0x00, 0x01, 0x23, 0x45, 0x00, 0x00, 0x00, 0x06}) bytes.push_back(x);
    Checksum c;
    c.add_pseudo(IpAddr::v6_bytes(src), IpAddr::v6_bytes(dst), 6, 0x12345);
    EXPECT_EQ(c.finish(), naive(bytes));
}

TEST(Checksum, IncrementalUpdateVerifiesLikeAFullSum) {
    const uint64_t seed = 0x1003;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    for (int round = 0; round < 2000; round++) {
        std::vector<uint8_t> b = random_bytes(rng, 40);
        b[10] = b[11] = 0;
        store_be16(&b[10], checksum(b));
        const bool wide = rng.chance(1, 2);
        const size_t at = 12 + 4 * rng.below(7);
        const uint32_t old32 = load_be32(&b[at]);
        const uint32_t new32 = rng.chance(1, 4) ? 0xffffffff : uint32_t(rng.next());
        const uint16_t field = load_be16(&b[10]);
        if (wide) {
            store_be16(&b[10], checksum_update32(field, old32, new32));
            store_be32(&b[at], new32);
        } else {
            store_be16(&b[10], checksum_update16(field, uint16_t(old32 >> 16), uint16_t(new32)));
            store_be16(&b[at], uint16_t(new32));
        }
        ASSERT_EQ(checksum(b), 0) << "round " << round;
    }
}

// RFC 1624 section 4: the case in which the older equation of RFC 1141 gives 0xffff.
TEST(Checksum, Rfc1624Example) { EXPECT_EQ(checksum_update16(0xdd2f, 0x5555, 0x3285), 0x0000); }

}  // namespace
}  // namespace vma
