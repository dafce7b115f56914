// Goodput over {loss} x {reorder} x {RTT} x {rate} x {bottleneck buffer}, byte-exact, against tests/sim/tcp/goodput.txt. A
// change of behaviour shows as a difference of that file; VMA_GOODPUT_WRITE=1 writes it anew. Each number is the median of
// kRuns transfers with seeds and lengths of their own: whether the very last segment of one is lost is worth a factor of a
// hundred where the rest takes a millisecond, and says nothing.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "support/tcp_link.h"

namespace vma::tcp {
namespace {

struct Point {
    uint32_t loss, reorder;  // per mille
    int64_t rtt_us;
    uint64_t mbit;
    uint32_t buffer_kib;
};

std::vector<Point> points() {
    std::vector<Point> all;
    for (uint32_t loss : {0u, 10u, 50u})
        for (uint32_t reorder : {0u, 30u})
            for (int64_t rtt : {10ll, 1000ll, 20000ll, 200000ll})
                for (uint64_t mbit : {1ull, 100ull, 10000ull, 100000ull})
                    for (uint32_t buffer : {32u, 1024u})
                        all.push_back({loss, reorder, rtt, mbit, buffer});
    return all;
}

std::string key(const Point& p) {
    char text[96];
    std::snprintf(text, sizeof text, "loss %2u reorder %2u rtt_us %6lld mbit %6llu buffer_kib %4u",
                  p.loss, p.reorder, static_cast<long long>(p.rtt_us),
                  static_cast<unsigned long long>(p.mbit), p.buffer_kib);
    return text;
}

struct Outcome {
    double mbit = 0;
    uint32_t timeouts = 0;
};

constexpr unsigned kRuns = 3;

Outcome run_once(const Point& p, unsigned which) {
    LinkParams l;
    l.seed = 7 + which;
    l.loss_permille = p.loss;
    l.reorder_permille = p.reorder;
    l.rtt = Duration::micros(p.rtt_us);
    l.bytes_per_second = p.mbit * 125000;
    l.queue_bytes = p.buffer_kib * 1024;
    TcpLink link(l);
    for (Host* h : {&link.client, &link.server}) {
        h->cfg.send_buffer = 1 << 20;
        h->cfg.send_buffer_max = 4 << 20;
        h->cfg.receive_buffer_max = 6 << 20;
        h->cfg.syn_retries = h->cfg.synack_retries = 10;
    }
    link.client.to_send.resize((1 << 20) + 5000 * which);
    Rng rng(11);
    for (char& c : link.client.to_send) c = char(rng.next() >> 40);
    link.start();
    const Instant began = link.now;
    EXPECT_TRUE(link.run(Duration::seconds(3600)));
    EXPECT_TRUE(link.server.received == link.client.to_send);
    EXPECT_EQ(link.client.error, 0);
    EXPECT_EQ(link.server.error, 0);
    const double seconds = double((link.now - began).ns) * 1e-9;
    return {double(link.client.to_send.size()) * 8e-6 / seconds, link.client.t.count.timeouts};
}

// The median, and the timeouts of all.
Outcome run(const Point& p) {
    std::array<double, kRuns> mbit;
    Outcome all;
    for (unsigned i = 0; i < kRuns && !testing::Test::HasFailure(); ++i) {
        const Outcome one = run_once(p, i);
        mbit[i] = one.mbit;
        all.timeouts += one.timeouts;
    }
    std::nth_element(mbit.begin(), mbit.begin() + kRuns / 2, mbit.end());
    all.mbit = mbit[kRuns / 2];
    return all;
}

TEST(Goodput, EqualsTheSnapshot) {
    std::map<std::string, double> known;
    std::ifstream file(VMA_SIM_DIR "/goodput.txt");
    for (std::string line; std::getline(file, line);) {
        const size_t colon = line.find(':');
        if (line.empty() || line[0] == '#' || colon == std::string::npos) continue;
        known[line.substr(0, colon)] = std::atof(line.c_str() + colon + 1);
    }
    const bool write = std::getenv("VMA_GOODPUT_WRITE") != nullptr;
    std::ostringstream now;
    now << "# Mbit/s of a 1 MiB transfer, hand-shake and close included, the median of three, and "
           "the retransmission timeouts of all three.\n";
    for (const Point& p : points()) {
        SCOPED_TRACE(key(p));
        const Outcome o = run(p);
        if (HasFailure()) return;
        char text[64];
        std::snprintf(text, sizeof text, ": %10.3f timeouts %u\n", o.mbit, o.timeouts);
        now << key(p) << text;
        if (write) continue;
        const auto it = known.find(key(p));
        if (it == known.end()) {
            ADD_FAILURE() << "not in the snapshot: " << o.mbit;
            continue;
        }
        // Rounding differs between compilers; behaviour shows as more.
        EXPECT_NEAR(o.mbit, it->second, it->second * 0.02 + 0.001);
    }
    if (!write) return;
    std::ofstream out(VMA_SIM_DIR "/goodput.txt");
    out << now.str();
    EXPECT_TRUE(out.good());
}

// BBR (cc_bbr.cc) on a bottleneck of 100 Mbit/s and 20 ms.
Outcome run_bbr(uint32_t loss, uint32_t queue, size_t bytes, Duration* srtt = nullptr) {
    LinkParams l;
    l.seed = 5;
    l.loss_permille = loss;
    l.rtt = Duration::millis(20);
    l.bytes_per_second = 12500000;
    l.queue_bytes = queue;
    TcpLink link(l);
    for (Host* h : {&link.client, &link.server}) {
        h->cfg.cc = CcKind::bbr;
        h->cfg.send_buffer = 4 << 20;
        h->cfg.receive_buffer_max = 6 << 20;
    }
    link.client.to_send.assign(bytes, 'b');
    link.start();
    const Instant began = link.now;
    EXPECT_TRUE(link.run(Duration::seconds(600)));
    EXPECT_TRUE(link.server.received == link.client.to_send);
    if (srtt) *srtt = link.client.t.rtt.srtt;
    const double seconds = double((link.now - began).ns) * 1e-9;
    return {double(bytes) * 8e-6 / seconds, link.client.t.count.timeouts};
}

TEST(Bbr, FillsACleanLinkWithAShortQueue) {
    Duration srtt{0};
    const Outcome o = run_bbr(0, 4 << 20, 40 << 20, &srtt);
    EXPECT_GT(o.mbit, 80);
    // A window-filling algorithm would stand at 20 ms and 335 ms of queue.
    EXPECT_LT(srtt, Duration::millis(60));
}

TEST(Bbr, LossIsNoOrderToSlowDown) {
    // CUBIC gets about 9 Mbit/s of this.
    const Outcome o = run_bbr(10, 1 << 20, 20 << 20);
    EXPECT_GT(o.mbit, 50);
    EXPECT_LE(o.timeouts, 2u);
}

TEST(Bbr, ShortBufferIsEnough) {
    const Outcome o = run_bbr(0, 64 << 10, 20 << 20);
    EXPECT_GT(o.mbit, 50);
}

}  // namespace
}  // namespace vma::tcp
