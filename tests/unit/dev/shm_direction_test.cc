// One direction of a shm pair: frames through it, and what its ends do when the other one lies.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>

#include "base/arena.h"
#include "support/shm_pair.h"

namespace vma::test {
namespace {

using namespace shm;
using Took = Inbound::Took;

struct UnmapArena {
    void operator()(Arena* a) const { Arena::unmap(a); }
};

// Both ends of the direction from the opener to the joiner.
struct Way {
    explicit Way(uint32_t bytes = kLeastRingBytes) {
        const auto memory = create_pair_memory(bytes, nullptr);
        EXPECT_TRUE(memory);
        EXPECT_TRUE(opener.map(*memory, Side::opener, nullptr));
        EXPECT_TRUE(joiner.map(*memory, Side::joiner, nullptr));
        close(*memory);
        out.open(opener.outgoing(), opener.of_outgoing(), bytes);
        in.open(joiner.incoming(), joiner.of_incoming(), bytes);
    }
    uint64_t* word(uint64_t at) {
        return reinterpret_cast<uint64_t*>(opener.outgoing() + (at & (opener.ring_bytes() - 1)));
    }
    ConsumerWords& words() { return opener.of_outgoing(); }

    std::unique_ptr<Arena, UnmapArena> arena{*Arena::create(Arena::kMinReserve * 8)};
    PacketPool pool{*arena};
    PairMapping opener, joiner;
    Outbound out;
    Inbound in;
};

// Frame number n: its bytes follow from n and length, in a head and several pieces of payload.
struct Numbered {
    Numbered(uint32_t number, uint32_t length, uint32_t head, unsigned pieces)
        : bytes(length), vectors(pieces) {
        for (uint32_t i = 0; i < length; ++i) bytes[i] = byte(number, i);
        frame.head = {bytes.data(), head};
        uint32_t at = head;
        for (unsigned i = 0; i < pieces; ++i) {
            const uint32_t n = i + 1 == pieces ? length - at : (length - at) / (i + 2);
            vectors[i] = {bytes.data() + at, n};
            at += n;
        }
        frame.payload = vectors.data();
        frame.payload_count = uint16_t(pieces);
        if (pieces == 0) frame.head = {bytes.data(), length};
        frame.payload_len = uint32_t(length - frame.head.size());
    }
    static uint8_t byte(uint32_t number, uint32_t i) {
        return uint8_t(number * 37 + i * 11 + (i >> 7));
    }
    static bool same(const PacketBuf& p, uint32_t number, uint32_t length) {
        if (p.len != length) return false;
        for (uint32_t i = 0; i < length; ++i)
            if (p.data[i] != byte(number, i)) return false;
        return true;
    }
    std::vector<uint8_t> bytes;
    std::vector<iovec> vectors;
    TxFrame frame;
};

uint32_t random_length(std::mt19937& random) {
    switch (random() % 4) {
        case 0:
            return kLeastFrameBytes + random() % 100;
        case 1:
            return kLeastFrameBytes + random() % 2000;
        case 2:
            return kMostFrameBytes - random() % 200;
        default:
            return kLeastFrameBytes + random() % (kMostPacketBytes + 1);
    }
}

TEST(ShmDirection, FramesComeOutAsTheyWentIn) {
    const uint32_t seed = 19;
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Way way;
    std::deque<std::pair<uint32_t, uint32_t>> under_way;  // number, length
    uint64_t bytes = 0, refused = 0;
    for (uint32_t number = 0; number < 3000; ++number) {
        const uint32_t length = random_length(random);
        const uint32_t head = std::min(length, kLeastFrameBytes + uint32_t(random() % 120));
        Numbered n(number, length, head, random() % 3 ? 1 : random() % 6);
        int error = way.out.push(n.frame);
        while (error == EAGAIN) {  // until there is room: nothing may have been lost
            ++refused;
            ASSERT_FALSE(under_way.empty());
            Packet p;
            ASSERT_EQ(way.in.take(way.pool, p), Took::frame);
            ASSERT_TRUE(Numbered::same(*p, under_way.front().first, under_way.front().second));
            under_way.pop_front();
            error = way.out.push(n.frame);
        }
        ASSERT_EQ(error, 0);
        under_way.push_back({number, length});
        bytes += length;
        for (unsigned k = random() % 3; k > 0 && !under_way.empty(); --k) {
            Packet p;
            ASSERT_EQ(way.in.take(way.pool, p), Took::frame);
            ASSERT_TRUE(Numbered::same(*p, under_way.front().first, under_way.front().second));
            under_way.pop_front();
        }
    }
    EXPECT_GT(bytes, 100u * kLeastRingBytes) << "too few laps";
    EXPECT_GT(refused, 50u) << "the ring was never full";
}

// Full to the last place, then empty, with every size of the last gap.
TEST(ShmDirection, AFullRingHoldsWhatItTookAndNothingOfItIsOverwritten) {
    for (uint32_t shift = 0; shift < 20; ++shift) {
        Way way;
        uint32_t sent = 0, taken = 0;
        auto fill = [&](uint32_t length) {
            for (;;) {
                Numbered n(sent, length, 14, 1);
                const int error = way.out.push(n.frame);
                if (error) {
                    ASSERT_EQ(error, EAGAIN);
                    return;
                }
                ++sent;
            }
        };
        std::deque<uint32_t> lengths;
        for (uint32_t k = 0; k < shift; ++k) {
            Numbered n(sent++, 14 + 64 * k, 14, 1);
            ASSERT_EQ(way.out.push(n.frame), 0);
            lengths.push_back(14 + 64 * k);
        }
        for (uint32_t length : {5000u, 700u, 14u}) {
            const uint32_t before = sent;
            fill(length);
            for (uint32_t k = before; k < sent; ++k) lengths.push_back(length);
        }
        while (taken < sent) {
            Packet p;
            ASSERT_EQ(way.in.take(way.pool, p), Took::frame) << taken;
            ASSERT_TRUE(Numbered::same(*p, taken, lengths.front())) << taken << " shift " << shift;
            lengths.pop_front();
            ++taken;
        }
        Packet none;
        EXPECT_EQ(way.in.take(way.pool, none), Took::nothing);
    }
}

// Old bytes of frames are never taken for a record: whatever the payload is, an empty ring reads as empty.
TEST(ShmDirection, PayloadThatLooksLikeRecordsIsNone) {
    Way way;
    std::mt19937 random(3);
    std::vector<uint8_t> bytes(kMostFrameBytes);
    const uint64_t word = word_of({1000, 0, 0});
    for (uint32_t lap = 0; lap < 200; ++lap) {
        const uint32_t length = random_length(random);
        for (uint32_t i = 0; i + 8 <= length; i += 8) std::memcpy(&bytes[i], &word, 8);
        TxFrame f;
        f.head = {bytes.data(), length};
        ASSERT_EQ(way.out.push(f), 0);
        Packet p;
        ASSERT_EQ(way.in.take(way.pool, p), Took::frame);
        ASSERT_EQ(p->len, length);
        Packet none;
        ASSERT_EQ(way.in.take(way.pool, none), Took::nothing) << lap;
    }
}

TEST(ShmDirection, MetaTravelsAndAShortPayloadLeavesNoTrace) {
    Way way;
    Numbered n(1, 900, 54, 2);
    n.frame.csum_start = 34;
    n.frame.gso = Gso::tcp_v4;
    n.frame.gso_size = 123;
    ASSERT_EQ(way.out.push(n.frame), 0);
    TxFrame lies = n.frame;
    lies.payload_len += 1;
    EXPECT_EQ(way.out.push(lies), EINVAL);
    n.frame.csum_start = 0;
    n.frame.gso = Gso::none;
    ASSERT_EQ(way.out.push(n.frame), 0);
    Packet p;
    ASSERT_EQ(way.in.take(way.pool, p), Took::frame);
    EXPECT_TRUE(p->meta.checksum_good);
    EXPECT_EQ(p->meta.gso_size, 123);
    ASSERT_EQ(way.in.take(way.pool, p), Took::frame);
    EXPECT_FALSE(p->meta.checksum_good);
    EXPECT_EQ(p->meta.gso_size, 0);
    EXPECT_TRUE(Numbered::same(*p, 1, 900));
    EXPECT_EQ(way.in.take(way.pool, p), Took::nothing);
}

TEST(ShmDirection, AnEmptyPoolLeavesTheFrame) {
    Way way;
    Numbered n(5, 400, 54, 1);
    ASSERT_EQ(way.out.push(n.frame), 0);
    way.pool.set_limits({0, 0});
    Packet p;
    EXPECT_EQ(way.in.take(way.pool, p), Took::no_memory);
    EXPECT_FALSE(p);
    way.pool.set_limits({});
    ASSERT_EQ(way.in.take(way.pool, p), Took::frame);
    EXPECT_TRUE(Numbered::same(*p, 5, 400));
}

TEST(ShmDirection, TheBellIsAskedForOncePerSleep) {
    Way way;
    EXPECT_FALSE(way.out.must_ring()) << "awake";
    for (int i = 0; i < 3; ++i) {
        way.in.fall_asleep();
        EXPECT_FALSE(way.in.pending());
        EXPECT_TRUE(way.out.must_ring());
        EXPECT_FALSE(way.out.must_ring()) << "rung already";
        way.in.wake();
        EXPECT_FALSE(way.out.must_ring());
    }
    way.in.fall_asleep();
    way.in.fall_asleep();  // another thread
    EXPECT_TRUE(way.out.must_ring());
    way.in.fall_asleep();  // which has emptied the bell
    EXPECT_TRUE(way.out.must_ring());
    for (uint32_t nonsense : {7u, 0xffffffffu, 0x80000000u}) {
        way.words().sleeping = nonsense;
        EXPECT_TRUE(way.out.must_ring());
        EXPECT_FALSE(way.out.must_ring());
    }
}

// ---- ends that lie

TEST(ShmDirection, AConsumerThatLiesEndsTheDirection) {
    struct Case {
        uint64_t (*value)(uint64_t consumed, uint64_t produced);
        Fault fault;
    } const cases[] = {
        {[](uint64_t c, uint64_t) { return c - 64; }, Fault::consumed_back},
        {[](uint64_t c, uint64_t) { return c - 1; }, Fault::consumed_back},
        {[](uint64_t, uint64_t) -> uint64_t { return 0; }, Fault::consumed_back},
        {[](uint64_t, uint64_t p) { return p + 64; }, Fault::consumed_beyond},
        {[](uint64_t, uint64_t p) { return p + 1; }, Fault::consumed_beyond},
        {[](uint64_t c, uint64_t) { return c + kLeastRingBytes * 2; }, Fault::consumed_beyond},
        {[](uint64_t, uint64_t) { return UINT64_MAX; }, Fault::consumed_beyond},
        {[](uint64_t, uint64_t) { return uint64_t(1) << 63; }, Fault::consumed_beyond},
        {[](uint64_t c, uint64_t) { return c | uint64_t(1) << 32; }, Fault::consumed_beyond},
        {[](uint64_t c, uint64_t) { return c + 1; }, Fault::consumed_ragged},
        {[](uint64_t c, uint64_t) { return c + 63; }, Fault::consumed_ragged},
    };
    for (const Case& c : cases) {
        Way way;
        Numbered n(1, 20000, 54, 1);
        int error = 0;
        uint64_t produced = 0;
        // One honest lap, so that the positions are not zero.
        for (int i = 0; i < 13; ++i) {
            ASSERT_EQ(way.out.push(n.frame), 0);
            produced += record_span(20000);
            Packet p;
            ASSERT_EQ(way.in.take(way.pool, p), Took::frame);
        }
        way.in.fall_asleep();  // publishes
        const uint64_t consumed = way.words().consumed;
        ASSERT_EQ(consumed, produced);
        while ((error = way.out.push(n.frame)) == 0) produced += record_span(20000);
        ASSERT_EQ(error, EAGAIN);
        way.words().consumed = c.value(consumed, produced);
        EXPECT_EQ(way.out.push(n.frame), ENETDOWN);
        EXPECT_EQ(way.out.fault(), c.fault);
        way.words().consumed = produced;  // too late to be good
        EXPECT_EQ(way.out.push(n.frame), ENETDOWN);
    }
}

TEST(ShmDirection, ARecordThatNobodyStoresEndsTheDirection) {
    std::vector<uint64_t> bad = {1, 42, UINT64_MAX, uint64_t(1) << 63, kWordMark << 48};
    for (uint32_t length : {0u, 1u, 13u, kMostFrameBytes + 1, 0xffffu + 100, 0xffffffu})
        bad.push_back(kWordMark << 48 | length);
    for (unsigned flag = 0; flag < 8; ++flag)
        if (!(kKnownFlags >> flag & 1)) bad.push_back(word_of({100, 0, uint8_t(1u << flag)}));
    for (unsigned bit = 48; bit < 64; ++bit)
        bad.push_back(word_of({100, 0, 0}) ^ uint64_t(1) << bit);
    for (uint64_t word : bad) {
        Way way;
        Numbered n(1, 300, 54, 1);
        ASSERT_EQ(way.out.push(n.frame), 0);
        Packet p;
        ASSERT_EQ(way.in.take(way.pool, p), Took::frame);
        p.reset();
        *way.word(record_span(300)) = word;
        EXPECT_TRUE(way.in.pending());
        EXPECT_EQ(way.in.take(way.pool, p), Took::fault) << std::hex << word;
        EXPECT_FALSE(p);
        EXPECT_EQ(way.in.fault(), Fault::record_word);
        *way.word(record_span(300)) = word_of({300, 0, 0});
        EXPECT_EQ(way.in.take(way.pool, p), Took::fault);
        EXPECT_EQ(way.pool.counters().in_use, 0u);
    }
    for (uint32_t length : {kLeastFrameBytes, kMostFrameBytes}) {  // the limits themselves are good
        Way way;
        *way.word(0) = word_of({length, 0xffff, kChecksumVouched});
        Packet p;
        EXPECT_EQ(way.in.take(way.pool, p), Took::frame);
        EXPECT_EQ(p->len, length);
    }
}

// The word changes while it is looked at: the frame and the step to the next one belong to the same look.
TEST(ShmDirection, AWordThatChangesIsReadOnce) {
    for (unsigned round = 0; round < 300; ++round) {
        Way way;
        constexpr uint32_t kShort = 40, kLong = 60000;
        *way.word(record_span(kShort)) = word_of({100, 1, 0});
        *way.word(record_span(kLong)) = word_of({101, 2, 0});
        std::atomic<bool> stop{false}, flipping{false};
        std::thread liar([&] {
            for (bool small = true; !stop.load(std::memory_order_relaxed); small = !small) {
                __atomic_store_n(way.word(0), word_of({small ? kShort : kLong, 0, 0}),
                                 __ATOMIC_RELEASE);
                flipping.store(true, std::memory_order_relaxed);
            }
        });
        while (!flipping.load(std::memory_order_relaxed)) std::this_thread::yield();
        Packet first, second;
        const Took one = way.in.take(way.pool, first), two = way.in.take(way.pool, second);
        stop = true;
        liar.join();
        ASSERT_EQ(one, Took::frame);
        ASSERT_EQ(two, Took::frame);
        ASSERT_TRUE(first->len == kShort || first->len == kLong);
        EXPECT_EQ(second->len, first->len == kShort ? 100u : 101u);
    }
}

// ---- text

TxFrame text_of(const TextHead& head, const iovec& bytes) {
    TxFrame t;
    t.head = {reinterpret_cast<const uint8_t*>(&head), sizeof head};
    t.payload = &bytes;
    t.payload_count = 1;
    t.payload_len = uint32_t(bytes.iov_len);
    return t;
}

TEST(ShmDirection, TextIsTakenWithItsHeadAndCanBeHadBackUntilItsPlaceIsUsedAgain) {
    Way way;
    std::string stream;
    uint32_t seq = 0xffffff00;  // over the end of the numbers
    const uint32_t first = seq;
    for (uint32_t i = 0; i < 40; ++i) {
        const std::string piece(1 + i * 37 % 300, char('a' + i % 26));
        const TextHead head{7u | (i % 2 ? TextHead::kPushed : 0), Seq{seq}};
        ASSERT_EQ(way.out.push_text(text_of(head, {const_cast<char*>(piece.data()), piece.size()})),
                  0);
        const TextHead other{8, Seq{seq}};
        ASSERT_EQ(way.out.push_text(text_of(other, {const_cast<char*>("zzz"), 3})), 0);
        Numbered frame(i, 60, 54, 1);
        ASSERT_EQ(way.out.push(frame.frame), 0);
        seq += uint32_t(piece.size());
        stream += piece;
    }
    const auto back = [&](uint32_t from, uint32_t until, bool there = true) {
        std::vector<uint8_t> out;
        EXPECT_EQ(way.out.copy_text(7, Seq{from}, Seq{until}, out), there) << from - first;
        return std::string(out.begin(), out.end());
    };
    EXPECT_EQ(back(first, seq), stream);
    EXPECT_EQ(back(first + 1000, seq - 5), stream.substr(1000, stream.size() - 1005));
    EXPECT_EQ(back(seq, seq), "");
    back(first, seq + 1, false);
    back(first - 1, seq, false);

    std::string taken;
    for (unsigned i = 0; i < 120; ++i) {
        const uint32_t next = way.in.next_text();
        Packet p;
        ASSERT_EQ(way.in.take(way.pool, p), Took::frame);
        ASSERT_EQ(p->meta.flow_tag != 0, i % 3 != 2);
        EXPECT_EQ(next, i % 3 == 2 ? 0u : i % 3 == 0 ? 7u : 8u);
        if (i % 3 != 0) continue;
        TextHead head;
        std::memcpy(&head, p->data, sizeof head);
        EXPECT_EQ(head.seq.v, first + uint32_t(taken.size()));
        EXPECT_EQ((head.tag & TextHead::kPushed) != 0, i / 3 % 2 == 1);
        taken.append(reinterpret_cast<const char*>(p->data) + sizeof head, p->len - sizeof head);
    }
    EXPECT_EQ(taken, stream);
    EXPECT_EQ(back(first, seq), stream) << "the producer has not used the room yet";
    way.in.fall_asleep();
    Numbered large(1, kMostFrameBytes, 54, 1);
    while (way.out.push(large.frame) == 0) {
    }
    back(first, seq, false);
}

TEST(ShmDirection, TextThatWasWrittenOverIsNotBelieved) {
    for (uint64_t bad :
         {uint64_t{0}, UINT64_MAX, word_of({60000, 0, kText}), word_of({8, 0, kText}),
          word_of({100, 1, kText}), word_of({100, 0, kText | kChecksumVouched})}) {
        Way way;
        const TextHead head{7, Seq{0}};
        ASSERT_EQ(way.out.push_text(text_of(head, {const_cast<char*>("abcdefgh"), 8})), 0);
        ASSERT_EQ(way.out.push_text(text_of({7, Seq{8}}, {const_cast<char*>("ijkl"), 4})), 0);
        *way.word(0) = bad;
        std::vector<uint8_t> out;
        EXPECT_FALSE(way.out.copy_text(7, Seq{0}, Seq{12}, out)) << std::hex << bad;
        if (bad == 0) continue;
        Packet p;
        const bool sane =
            bad == word_of({60000, 0, kText});  // of the right kind: its own stream is garbage
        EXPECT_EQ(way.in.take(way.pool, p), sane ? Took::frame : Took::fault) << std::hex << bad;
    }
}

// ---- two threads

TEST(ShmDirection, TwoThreadsAtOnce) {
    const uint32_t seed = 23;
    SCOPED_TRACE(seed);
    constexpr uint32_t kFrames = 20000;
    Way way;
    auto length_of = [](uint32_t number) {
        return kLeastFrameBytes + (number * 2654435761u >> 7) % (number % 50 == 0 ? 65000 : 300);
    };
    std::atomic<bool> failed{false};
    std::thread producer([&] {
        for (uint32_t number = 0; number < kFrames && !failed;) {
            Numbered n(number, length_of(number), 14, 1);
            const int error = way.out.push(n.frame);
            if (error == 0) ++number;
            if (error == EAGAIN) std::this_thread::yield();
            if (error != 0 && error != EAGAIN) failed = true;
            (void)way.out.must_ring();
        }
    });
    uint32_t number = 0;
    std::mt19937 random(seed);
    unsigned quiet = 0;
    while (number < kFrames && !failed && quiet < 100'000'000) {
        Packet p;
        const Took took = way.in.take(way.pool, p);
        if (took == Took::frame) {
            quiet = 0;
            if (!Numbered::same(*p, number, length_of(number))) failed = true;
            ++number;
        } else if (took == Took::nothing) {
            if (++quiet % 64 == 0) std::this_thread::yield();
            if (random() % 100 == 0) {
                way.in.fall_asleep();
                way.in.wake();
            }
        } else {
            failed = true;
        }
    }
    EXPECT_FALSE(failed) << "at frame " << number;
    failed = true;
    producer.join();
    EXPECT_EQ(number, kFrames);
}

}  // namespace
}  // namespace vma::test
