// vma_capture: the frames of the offloaded sockets of a preloaded process, both directions, as pcapng; to a file, to standard
// output or, as an extcap program, into Wireshark (docs/STATS.md). A frame that the library dropped has the reason as its
// comment. Exit status: 0 also when the process ends; 1 when nothing can be captured.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pcap/pcap.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "capture/extcap.h"
#include "capture/pcapng.h"
#include "capture/source.h"

namespace {

using namespace vma;
using namespace vma::capture;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookEvery{2};
constexpr std::chrono::seconds kSayHello{1};

volatile sig_atomic_t g_stop = 0;
void on_signal(int) { g_stop = 1; }

void say(const std::string& text) { std::fputs(("vma_capture: " + text + "\n").c_str(), stderr); }

struct Options {
    uint32_t pid = 0;
    std::string directory = "/tmp/", file = "-", filter;
    uint64_t count = 0;
    double seconds = 0;
    uint32_t buffer = 8u << 20;
    // extcap(4)
    bool interfaces = false, dlts = false, config = false, capture = false;
    std::string interface, fifo, version, extcap_filter;
};

// A compiled filter expression (pcap-filter(7)).
class Filter {
  public:
    // False: said.
    bool compile(const std::string& text) {
        if (text.empty()) return true;
        pcap_t* dead = pcap_open_dead(DLT_EN10MB, 1 << 18);
        active_ = dead && pcap_compile(dead, &program_, text.c_str(), 1, PCAP_NETMASK_UNKNOWN) == 0;
        if (!active_)
            say(fmt::format("filter '{}': {}", text, dead ? pcap_geterr(dead) : "no memory"));
        if (dead) pcap_close(dead);
        return active_;
    }
    ~Filter() {
        if (active_) pcap_freecode(&program_);
    }
    bool wants(const Frame& frame) const {
        if (!active_) return true;
        pcap_pkthdr head{};
        head.caplen = head.len = bpf_u_int32(frame.bytes.size());
        return pcap_offline_filter(&program_, &head,
                                   reinterpret_cast<const u_char*>(frame.bytes.data())) != 0;
    }

  private:
    bpf_program program_{};
    bool active_ = false;
};

// Frames into a pcapng file; interfaces are described when their first frame comes.
class Sink {
  public:
    Sink(const Source& source, int fd) : source_(source), writer_(fd) {}
    bool begin() { return writer_.begin("vma_capture"); }
    bool take(const Frame& frame) {
        const auto [place, is_new] = numbers_.try_emplace(frame.ifindex, uint32_t(numbers_.size()));
        if (is_new && !writer_.add_interface(source_.interface_name(frame.ifindex),
                                             "libvma ring of " + source_.program()))
            return false;
        const std::string comment =
            frame.drop == DropReason::none
                ? ""
                : fmt::format("dropped: {}: {}", drop_name(frame.drop), drop_help(frame.drop));
        return writer_.packet(place->second, frame.time_ns, frame.bytes, frame.inbound, comment);
    }

  private:
    const Source& source_;
    PcapngWriter writer_;
    std::map<uint32_t, uint32_t> numbers_;  // interface index -> number in the file
};

int run(const Options& options, int fd) {
    Filter filter;
    if (!filter.compile(options.filter.empty() ? options.extcap_filter : options.filter)) return 1;
    std::string why;
    auto source = Source::open(options.directory, options.pid, options.buffer, &why);
    if (!source) {
        say(why);
        return 1;
    }
    Sink sink(*source, fd);
    bool open = sink.begin();
    if (open && fd != STDOUT_FILENO)
        say(fmt::format("capturing from {} ({})", source->program(), options.pid));
    uint64_t taken = 0;
    const auto start = steady_clock::now();
    auto hello = start + kSayHello;
    bool there = true;
    Frame frame;
    while (open && (options.count == 0 || taken < options.count)) {
        const auto now = steady_clock::now();
        if (now >= hello) {
            there = source->still_there();
            hello = now + kSayHello;
        }
        const bool ending =
            g_stop || !there ||
            (options.seconds > 0 && now - start >= std::chrono::duration<double>(options.seconds));
        const Source::Next next = source->next(frame);
        if (next == Source::Next::frame) {
            if (!filter.wants(frame)) continue;
            open = sink.take(frame);
            taken += open;
        } else if (next == Source::Next::damaged) {
            say("the capture file was changed by somebody else");
            return 1;
        } else if (ending) {
            break;  // with all that was there
        } else {
            std::this_thread::sleep_for(kLookEvery);
        }
    }
    say(fmt::format("{} frames captured, {} dropped because the buffer was full", taken,
                    source->dropped()));
    return 0;
}

void add_options(CLI::App& app, Options& options) {
    app.add_option("-p,--pid", options.pid, "the process")->check(CLI::PositiveNumber);
    app.add_option("-k,--directory", options.directory,
                   "where its statistics page is (VMA_STATS_SHMEM_DIR)")
        ->capture_default_str();
    app.add_option("-w,--write", options.file, "file to write, -: standard output")
        ->capture_default_str();
    app.add_option("-c,--count", options.count, "frames to take, 0: until interrupted");
    app.add_option("-t,--seconds", options.seconds, "how long, 0: until interrupted");
    app.add_option("--buffer", options.buffer, "bytes between the process and this program")
        ->check(CLI::Range(stats::kLeastCapture, stats::kMostCapture))
        ->capture_default_str();
    app.add_option("filter", options.filter, "which frames: an expression of pcap-filter(7)");
    app.add_flag("--extcap-interfaces", options.interfaces,
                 "for Wireshark: the processes there are");
    app.add_flag("--extcap-dlts", options.dlts, "for Wireshark: the link type");
    app.add_flag("--extcap-config", options.config, "for Wireshark: the settings");
    app.add_flag("--capture", options.capture, "for Wireshark: capture into --fifo");
    app.add_option("--extcap-interface", options.interface, "for Wireshark: vma-PID");
    app.add_option("--extcap-version", options.version, "for Wireshark: ignored");
    app.add_option("--extcap-capture-filter", options.extcap_filter, "for Wireshark: the filter");
    app.add_option("--fifo", options.fifo, "for Wireshark: where to write");
}

// The descriptor to write to, or -1: said.
int open_output(const Options& options) {
    if (options.file == "-" && options.fifo.empty()) return STDOUT_FILENO;
    const std::string& name = options.fifo.empty() ? options.file : options.fifo;
    const int flags = options.fifo.empty() ? O_WRONLY | O_CREAT | O_TRUNC : O_WRONLY;
    const int fd = open(name.c_str(), flags | O_CLOEXEC, 0600);
    if (fd < 0) say(fmt::format("{}: {}", name, std::strerror(errno)));
    return fd;
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): without memory it ends
int main(int argc, char** argv) {
    Options options;
    CLI::App app("Frames of the offloaded sockets of a process, as pcapng", "vma_capture");
    app.set_help_flag("-h,-?,--help", "print this and exit");
    add_options(app, options);
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        std::fputs(app.help().c_str(), stdout);
        return 0;
    } catch (const CLI::ParseError& error) {
        say(error.what());
        std::fputs(app.help().c_str(), stderr);
        return 1;
    }
    if (options.interfaces || options.dlts || options.config) {
        std::fputs((options.interfaces ? extcap_interfaces(options.directory)
                    : options.dlts     ? extcap_dlts()
                                       : extcap_config())
                       .c_str(),
                   stdout);
        return 0;
    }
    if (options.capture) options.pid = extcap_process(options.interface).value_or(0);
    if (options.pid == 0) {
        say("which process? -p PID (vma_stats -v 5 shows them)");
        return 1;
    }
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
    const int fd = open_output(options);
    return fd < 0 ? 1 : run(options, fd);
}
