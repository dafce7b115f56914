// What viewers ask for: zeroes, listings, waiting places, words of their own; and a page whose viewer lies.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include "page_fixture.h"
#include "stats/pool_text.h"
#include "stats/socket_text.h"

namespace vma::stats {
namespace {

constexpr Instant at_ms(int64_t ms) { return Instant{ms * 1'000'000}; }

class Requests : public Pages {
  protected:
    Requests() {
        set_socket(row, udp(3, Path::offloaded, Reason::none));
        will_publish();
        std::string why;
        page.emplace(std::move(*PageFile::open(directory, self(), &why)));
    }
    static SocketNumbers received(uint64_t packets) {
        SocketNumbers n;
        n.rx_packets = packets;
        return n;
    }
    RowHandle row;
    std::optional<PageFile> page;
};

TEST_F(Requests, ZeroesAreABaseForTheDescriptorsNamed) {
    RowHandle other;
    set_socket(other, udp(4, Path::offloaded, Reason::none));
    Control wish;
    wish.zero_fds.range[0] = {3, 3};
    EXPECT_EQ(page->ask(Verb::zero, wish), 0);
    ASSERT_TRUE(due_now(at_ms(1)));
    count(row, 3, 10);
    count(other, 4, 20);
    EXPECT_FALSE(page->answered(Verb::zero));
    published(at_ms(1));
    EXPECT_TRUE(page->answered(Verb::zero));
    // Nothing of it outlives the publication that met it.
    count(row, 3, 11);
    for (const SocketRow& r : read().sockets) {
        EXPECT_EQ(r.numbers.rx_packets, r.id.fd == 3 ? 11u : 20u);
        EXPECT_EQ(r.base.rx_packets, r.id.fd == 3 ? 10u : 0u);
    }
    EXPECT_FALSE(due_now(at_ms(2)));
}

TEST_F(Requests, AListingIsReplacedByTheNext) {
    const auto list = [](unsigned count, const char* name) {
        Listing<OptionRow> rows;
        for (unsigned i = 0; i < count; i++) {
            OptionRow option;
            option.origin = i;
            std::strcpy(option.name, name);
            rows.add(option);
        }
    };
    list(1000, "first");
    EXPECT_EQ(read().options.size(), 1000u);
    list(3, "second");
    const Snapshot snapshot = read();
    ASSERT_EQ(snapshot.options.size(), 3u);
    EXPECT_STREQ(snapshot.options[2].name, "second");
    EXPECT_EQ(snapshot.header.listing_cut, 0u);
    list(0, "");
    EXPECT_TRUE(read().options.empty());
}

TEST_F(Requests, WhatDoesNotFitIntoAListingIsTold) {
    {
        Listing<FlowRow> rows;
        for (unsigned i = 0; i < 70'000; i++) rows.add({});
    }
    const Snapshot snapshot = read();
    EXPECT_EQ(snapshot.flows.size(), 65'536u);
    EXPECT_EQ(snapshot.header.listing_cut, list_bit(SegmentKind::flows));
    { Listing<FlowRow> none; }
    EXPECT_EQ(read().header.listing_cut, 0u);
}

TEST_F(Requests, WaitingPlacesComeAndGo) {
    std::vector<RowHandle> rows(100);
    for (int i = 0; i < 100; i++) {
        WaitNumbers n;
        n.poll_hit = unsigned(i);
        set_wait(rows[size_t(i)], {WaitKind::epoll, i}, n);
    }
    EXPECT_EQ(read().waits.size(), 100u);
    for (RowHandle& r : rows) remove_wait(r);
    EXPECT_TRUE(read().waits.empty());
    set_wait(rows[0], {WaitKind::poll, -1}, {});
    ASSERT_EQ(read().waits.size(), 1u);
    EXPECT_EQ(read().waits[0].numbers.poll_hit, 0u);
}

TEST_F(Requests, WordsOfTheViewerArriveAndAreAnsweredOnce) {
    EXPECT_EQ(asked_now(Verb::log), 0u);
    Control wish;
    wish.log_level = 5;
    wish.log_details = kKeep;
    EXPECT_EQ(page->ask(Verb::log, wish), 0);
    const uint64_t number = asked_now(Verb::log);
    ASSERT_NE(number, 0u);
    EXPECT_EQ(control().log_level, 5);
    EXPECT_EQ(control().log_details, kKeep);
    EXPECT_EQ(asked_now(Verb::dump), 0u);
    answer(Verb::log, number);
    EXPECT_TRUE(page->answered(Verb::log));
    EXPECT_EQ(asked_now(Verb::log), 0u);
}

TEST_F(Requests, ADetailOfAConnectionIsInItsText) {
    SocketIdentity id = udp(7, Path::offloaded, Reason::none);
    id.protocol = IPPROTO_TCP;
    id.tcp_state = 4;
    TcpNumbers tcp;
    tcp.here = 1;
    tcp.waiting = Waiting::peer_window;
    tcp.pacing_rate = UINT64_MAX;
    tcp.snd_cwnd = 10;
    tcp.rtt = 1500;
    std::strcpy(tcp.congestion_control, "cubic");
    char text[kSocketTextRoom];
    const std::string out(text, socket_text(text, sizeof text, id, received(3), tcp));
    EXPECT_THAT(out, testing::HasSubstr("\tFd=[7]\n- TCP, Blocked, Offloaded\n"));
    EXPECT_THAT(out, testing::HasSubstr("- State           = [ESTABLISHED]\n"));
    EXPECT_THAT(out, testing::HasSubstr("Rx Offload: 0 / 3 / 0 / 0 [kilobytes/packets/eagains"));
    EXPECT_THAT(out, testing::HasSubstr("cubic wscale:0,0 rto:0.000 rtt:1.500/0.000"));
    EXPECT_THAT(out, testing::HasSubstr("waiting:peer_window\n"));
    EXPECT_THAT(out, testing::Not(testing::HasSubstr("pacing_rate")));
    // Cut where the room ends, never beyond it.
    for (size_t room = 0; room < out.size(); room += 7) {
        std::vector<char> small(room + 1, '#');
        EXPECT_EQ(socket_text(small.data(), room, id, received(3), tcp), room);
        EXPECT_EQ(small[room], '#');
    }
}

TEST_F(Requests, MulticastAndThreadsAreInTheTextWhereTheyAreKnown) {
    SocketIdentity id = udp(7, Path::offloaded, Reason::none);
    char text[kSocketTextRoom];
    const auto out = [&] {
        return std::string(text, socket_text(text, sizeof text, id, received(3), {}));
    };
    EXPECT_THAT(out(), testing::HasSubstr("- UDP, Blocked, Offloaded, MC Loop Disabled\n"));
    EXPECT_THAT(out(), testing::Not(testing::HasSubstr("Thread")));
    id.multicast_loop = 1;
    id.multicast_interface = htonl(0x0a010105);
    id.rx_thread = 4411;
    id.tx_thread = 17;
    EXPECT_THAT(out(), testing::HasSubstr(
                           "- UDP, Blocked, Offloaded, MC Loop Enabled , MC IF = [10.1.1.5]\n"));
    EXPECT_THAT(out(), testing::HasSubstr("- Thread Id Rx:  4411, Tx:    17\n"));
}

TEST_F(Requests, TheMemoryOfARingIsInItsText) {
    RingNumbers n;
    n.pool_in_use = 3;
    n.pool_free = 125;
    n.pool_high_water = 40;
    n.arena_bytes = 1u << 20;
    EXPECT_FALSE(ran_short(n));
    n.pool_refused = 2;
    EXPECT_TRUE(ran_short(n));
    char text[kPoolTextRoom];
    const std::string out(text, pool_text(text, sizeof text, 1, n));
    EXPECT_EQ(out,
              "\tBUFFER_POOL(RX)=[1]\n"
              "Size:                128\n"
              "In use:              3 / 40 [now/most]\n"
              "No buffers error:    2\n"
              "Memory:              1024 / 0 [kilobytes in use/limit]\n"
              "TCP memory:          0 / 0 / 0 [kilobytes/refused/times short]\n");
}

}  // namespace
}  // namespace vma::stats
