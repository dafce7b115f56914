#include "stats/top.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <sstream>

namespace vma::stats {
namespace {

constexpr size_t kHistory = 24;  // looks that a sparkline shows

// The terminal in character mode, and as it was before afterwards.
class Keys {
  public:
    Keys() {
        on_ =
            isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && tcgetattr(STDIN_FILENO, &before_) == 0;
        if (!on_) return;
        termios now = before_;
        now.c_lflag &= ~tcflag_t(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &now);
        print("\033[?1049h\033[?25l");
    }
    ~Keys() {
        if (!on_) return;
        tcsetattr(STDIN_FILENO, TCSANOW, &before_);
        print("\033[?25h\033[?1049l");
    }
    Keys(const Keys&) = delete;
    Keys& operator=(const Keys&) = delete;
    bool on() const { return on_; }
    // Waits; true: q was pressed.
    bool wait(double seconds) const {
        pollfd keys{on_ ? STDIN_FILENO : -1, POLLIN, 0};
        char key = 0;
        return poll(&keys, 1, int(seconds * 1000)) > 0 && read(STDIN_FILENO, &key, 1) == 1 &&
               (key == 'q' || key == 'Q' || key == 4);
    }

  private:
    bool on_ = false;
    termios before_{};
};

std::string short_number(double n) {
    static constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
    unsigned unit = 0;
    for (; n >= 1000 && unit + 1 < std::size(kUnits); unit++) n /= 1000;
    return fmt::format("{:.{}f}{}", n, unit == 0 || n >= 100 ? 0 : 1, kUnits[unit]);
}

std::string short_time(uint64_t ns) {
    return ns < 10'000       ? fmt::format("{}ns", ns)
           : ns < 10'000'000 ? fmt::format("{}us", ns / 1000)
                             : fmt::format("{}ms", ns / 1'000'000);
}

// `value` as one of the eight blocks, the tallest for `most`; zero is blank.
const char* block(double value, double most) {
    static constexpr const char* kBlocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    return kBlocks[most > 0 && value > 0 ? 1 + size_t(7 * value / most) : 0];
}

// The recent past of one thing.
class Spark {
  public:
    void add(double value) {
        values_.push_back(value);
        if (values_.size() > kHistory) values_.pop_front();
    }
    std::string text() const {
        const double most = values_.empty() ? 0 : *std::max_element(values_.begin(), values_.end());
        std::string out;
        for (const double v : values_) out += block(v, most);
        return out;
    }

  private:
    std::deque<double> values_;
};

struct Past {
    std::map<uint32_t, Process> looks;                       // by pid
    std::map<std::pair<uint32_t, uint64_t>, Spark> sockets;  // by pid and cookie
    std::map<std::pair<uint32_t, size_t>, Spark> rings;
};

std::string latency_text(const LatencyRow* l) {
    if (l == nullptr || l->receive.count() == 0) return "-";
    return fmt::format("{}/{}", short_time(l->receive.percentile(0.5)),
                       short_time(l->receive.percentile(0.99)));
}

// "       read     1.0us ▁▃█▂ 15us", a block for each octave between the least and the longest time; "" without any.
std::string histogram_text(const char* label, const Histogram& h) {
    constexpr unsigned kOctave = 8, kOctaves = Histogram::kBuckets / kOctave;
    double octaves[kOctaves] = {}, most = 0;
    unsigned first = kOctaves, last = 0;
    for (unsigned i = 0; i < Histogram::kBuckets; i++) {
        if (h.n[i] == 0) continue;
        double& octave = octaves[i / kOctave];
        octave += double(h.n[i]);
        most = std::max(most, octave);
        first = std::min(first, i / kOctave);
        last = i / kOctave;
    }
    if (first > last) return "";
    std::string out =
        fmt::format("       {} {:>8} ", label, short_time(h.floor_of(first * kOctave)));
    for (unsigned i = first; i <= last; i++) out += block(octaves[i], most);
    return out + " " + short_time(h.max) + "\n";
}

std::string rows_of(const Process& now, const Process& rates, double seconds, Past& past) {
    std::string out = fmt::format("{} (pid {})\n", now.page.program, now.pid);
    out += fmt::format(
        "  {:<4} {:<5} {:<10} {:<21} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6} {:>8} {:>12} {}\n", "fd",
        "proto", "path", "peer", "rx pkt/s", "rx B/s", "tx pkt/s", "tx B/s", "retr/s", "poll%",
        "rtt", "read p50/p99", "bytes");
    const LatencyByFd times = latency_by_fd(now);
    for (const SocketView& v : rates.sockets) {
        if (!v.in_page) continue;
        const auto found = times.find(v.row.id.fd);
        const LatencyRow* const l = found == times.end() ? nullptr : found->second;
        const SocketNumbers& n = v.row.numbers;
        const auto rate = [&](uint64_t count) { return seconds > 0 ? double(count) / seconds : 0; };
        const double bytes = rate(n.rx_bytes + n.tx_bytes + n.rx_os_bytes);
        Spark& spark = past.sockets[{now.pid, v.row.id.cookie}];
        spark.add(bytes);
        out += fmt::format(
            "  {:<4} {:<5} {:<10} {:<21} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6.1f} {:>8} {:>12} {}\n",
            v.row.id.fd, v.protocol, path_name(v.row.id.path),
            v.remote.port ? endpoint_text(v.remote) : "*", short_number(rate(n.rx_packets)),
            short_number(rate(n.rx_bytes)), short_number(rate(n.tx_packets)),
            short_number(rate(n.tx_bytes)), short_number(rate(n.tx_retransmits)),
            polling_percent(n.poll_hit, n.poll_miss),
            v.row.tcp.here ? short_time(uint64_t(v.row.tcp.rtt) * 1000) : "-", latency_text(l),
            spark.text());
        if (l) out += histogram_text("read", l->receive) + histogram_text("send", l->send);
    }
    for (size_t i = 0; i < rates.page.rings.size(); i++) {
        const RingRow& ring = rates.page.rings[i];
        if (!ring.in_use) continue;
        const RingNumbers& n = ring.numbers;
        const auto rate = [&](uint64_t count) { return seconds > 0 ? double(count) / seconds : 0; };
        Spark& spark = past.rings[{now.pid, i}];
        spark.add(rate(n.rx_bytes + n.tx_bytes));
        out += fmt::format(
            "  ring {} on {}: rx {} frames/s {} B/s, tx {} frames/s {} B/s, {} dropped/s, "
            "polls with frames {:.1f}%  {}\n",
            i, printable(ring.id.interface, sizeof ring.id.interface),
            short_number(rate(n.rx_frames)), short_number(rate(n.rx_bytes)),
            short_number(rate(n.tx_frames)), short_number(rate(n.tx_bytes)),
            short_number(rate(n.rx_dropped)), polling_percent(n.polls, n.empty_polls),
            spark.text());
    }
    return out;
}

// What fits into the window.
std::string fitted(const std::string& text) {
    winsize window{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_row < 2) return text;
    std::istringstream in(text);
    std::string out, line;
    for (unsigned row = 1; row < window.ws_row && std::getline(in, line); row++)
        out += line + "\033[K\n";
    return out;
}

}  // namespace

int run_top(const Selection& which, double interval_s, unsigned cycles) {
    const Keys keys;
    Past past;
    for (unsigned cycle = 0; cycles == 0 || cycle < cycles; cycle++) {
        if (cycle && keys.wait(interval_s)) break;
        std::string out;
        std::map<uint32_t, Process> looks;
        for (Process& now : look_at_all(which, true, list_bit(SegmentKind::latencies))) {
            const auto before = past.looks.find(now.pid);
            const bool first = before == past.looks.end();
            const double seconds = first ? 0
                                         : double(now.page.header.published_ns -
                                                  before->second.page.header.published_ns) /
                                               1e9;
            out += rows_of(now, since(now, first ? now : before->second), seconds, past);
            looks.emplace(now.pid, std::move(now));
        }
        past.looks = std::move(looks);
        if (out.empty()) out = fmt::format("no preloaded process in {}\n", which.directory);
        print(keys.on() ? "\033[H" + fitted(out) + "\033[J" : out);
    }
    return past.looks.empty() ? 1 : 0;
}

}  // namespace vma::stats
