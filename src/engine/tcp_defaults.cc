#include "engine/tcp_defaults.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/made_once.h"
#include "base/siphash.h"
#include "base/sys.h"

namespace vma {
namespace {

// A file of /proc of one line, empty when it cannot be read.
struct Line {
    char text[128] = {};
    explicit Line(const char* path) {
        const int fd = int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr(path), O_RDONLY | O_CLOEXEC));
        if (fd < 0) return;
        sys::read(fd, text, sizeof text - 1);
        sys::close(fd);
    }
};

// The first `n` numbers of a file in /proc/sys/net; those that are not there keep what `out` has.
void read_numbers(const char* name, long* out, unsigned n) {
    char path[96] = "/proc/sys/net/";
    std::strncat(path, name, sizeof path - 16);
    Line line(path);
    char* at = line.text;
    for (unsigned i = 0; i < n; i++) {
        char* end;
        const long value = std::strtol(at, &end, 10);
        if (end == at) return;
        out[i] = value;
        at = end;
    }
}

long one(const char* name, long otherwise) {
    read_numbers(name, &otherwise, 1);
    return otherwise;
}

struct Sysctls {
    tcp::TcpConfig config;
    uint32_t somaxconn = 4096, max_half_open = 1024;
    long memory[3] = {0, 0, 0};  // tcp_mem, pages
    PortRange ports;
};

// net.ipv4.tcp_fastopen_key: one or two keys of four hexadecimal words. Count 0: not readable, or zero because the kernel has
// not needed one yet.
tcp::FastOpenKeys read_fast_open_key() {
    tcp::FastOpenKeys keys;
    Line line("/proc/sys/net/ipv4/tcp_fastopen_key");
    uint64_t words[8] = {};
    unsigned n = 0;
    for (char* at = line.text; n < 8; ++n) {
        char* end;
        words[n] = std::strtoul(at, &end, 16);
        if (end == at) break;
        at = end + (*end == '-' || *end == ',' ? 1 : 0);
    }
    for (unsigned k = 0; k < n / 4; ++k) {
        const uint64_t* w = words + 4 * k;
        if ((w[0] | w[1] | w[2] | w[3]) == 0) continue;
        keys.words[keys.count][0] = w[0] | w[1] << 32;
        keys.words[keys.count++][1] = w[2] | w[3] << 32;
    }
    return keys;
}

const Sysctls& sysctls() {
    static constinit MadeOnce<Sysctls> made;
    return made.get([](Sysctls& s) {
        tcp::TcpConfig& c = s.config;
        c.timestamps = one("ipv4/tcp_timestamps", 1) != 0;
        c.window_scaling = one("ipv4/tcp_window_scaling", 1) != 0;
        c.sack = one("ipv4/tcp_sack", 1) != 0;
        c.ecn = uint8_t(one("ipv4/tcp_ecn", 2));
        c.tail_probe = one("ipv4/tcp_early_retrans", 3) != 0;
        c.frto = one("ipv4/tcp_frto", 2) != 0;
        c.slow_start_after_idle = one("ipv4/tcp_slow_start_after_idle", 1) != 0;
        c.syn_retries = uint8_t(one("ipv4/tcp_syn_retries", 6));
        c.synack_retries = uint8_t(one("ipv4/tcp_synack_retries", 5));
        c.retries1 = uint8_t(one("ipv4/tcp_retries1", 3));
        c.retries2 = uint8_t(one("ipv4/tcp_retries2", 15));
        c.keepalive_idle = Duration::seconds(one("ipv4/tcp_keepalive_time", 7200));
        c.keepalive_interval = Duration::seconds(one("ipv4/tcp_keepalive_intvl", 75));
        c.keepalive_probes = uint8_t(one("ipv4/tcp_keepalive_probes", 9));
        c.fin_timeout = Duration::seconds(one("ipv4/tcp_fin_timeout", 60));
        long rmem[3] = {4096, 131072, 6291456};
        read_numbers("ipv4/tcp_rmem", rmem, 3);
        c.receive_buffer_max = uint32_t(std::clamp<long>(rmem[2] / 2, 65535, 1 << 30));
        c.receive_buffer = uint32_t(std::clamp<long>(rmem[1] / 2, 4096, c.receive_buffer_max));
        long wmem[3] = {4096, 16384, 4194304};
        read_numbers("ipv4/tcp_wmem", wmem, 3);
        c.send_buffer = uint32_t(std::clamp<long>(wmem[2] / 4, 16384, 1 << 30));
        c.send_buffer_max = uint32_t(std::clamp<long>(wmem[2], c.send_buffer, 1 << 30));
        c.syn_cookies = one("ipv4/tcp_syncookies", 1) != 0;
        c.fast_open = uint32_t(one("ipv4/tcp_fastopen", 1));
        c.mtu_probing = uint8_t(one("ipv4/tcp_mtu_probing", 0));
        c.probe_floor = uint16_t(one("ipv4/tcp_mtu_probe_floor", 48));
        c.probe_threshold = uint16_t(one("ipv4/tcp_probe_threshold", 8));
        c.probe_interval = Duration::seconds(one("ipv4/tcp_probe_interval", 600));
        c.base_mss = uint16_t(one("ipv4/tcp_base_mss", 1024));
        s.max_half_open = uint32_t(one("ipv4/tcp_max_syn_backlog", 1024));
        char algorithm[32] = {};
        const int fd = int(sys::raw(SYS_openat, AT_FDCWD,
                                    sys::ptr("/proc/sys/net/ipv4/tcp_congestion_control"),
                                    O_RDONLY | O_CLOEXEC));
        if (fd >= 0) {
            sys::read(fd, algorithm, sizeof algorithm - 1);
            sys::close(fd);
        }
        // Not bbr: its pacing in software costs half of the rate of a fast path. A program that wants it says so.
        c.cc = std::strncmp(algorithm, "reno", 4) == 0 ? tcp::CcKind::newreno : tcp::CcKind::cubic;
        c.notsent_lowat =
            uint32_t(std::clamp<long>(one("ipv4/tcp_notsent_lowat", UINT32_MAX), 0, UINT32_MAX));
        read_numbers("ipv4/tcp_mem", s.memory, 3);
        long range[2] = {32768, 60999}, reserved = -1;
        read_numbers("ipv4/ip_local_port_range", range, 2);
        read_numbers("ipv4/ip_local_reserved_ports", &reserved, 1);
        if (reserved < 0 && range[0] > 0 && range[0] <= range[1] && range[1] < 65536)
            s.ports = {uint16_t(range[0]), uint32_t(range[1] - range[0] + 1)};
        s.somaxconn = uint32_t(one("core/somaxconn", 4096));
    });
}

}  // namespace

uint32_t sent_mtu(const Options& options) {
    return options.mtu ? std::max(options.mtu, 576u) : UINT32_MAX;
}

tcp::TcpConfig tcp_defaults(const Options& options, const RingCaps& caps, uint32_t mtu) {
    tcp::TcpConfig c = sysctls().config;
    c.mss = uint16_t(
        std::clamp<uint32_t>(std::min({mtu, caps.mtu, sent_mtu(options)}), 576, 65535) - 40);
    if (options.mss) c.mss = uint16_t(std::min<uint32_t>(c.mss, options.mss));
    c.max_gso_bytes = caps.max_gso_bytes > 80 ? caps.max_gso_bytes - 80 : 0;
    // What waits here for an acknowledgement would be lost with the process; what is in shared memory is not.
    if (caps.pushes_back) c.nodelay = true;
    if (options.tcp_quickack) c.quickack_always = true;
    c.quickack_bytes = options.tcp_quickack_threshold;
    if (options.is_set(Opt::tcp_timestamp_option) && options.tcp_timestamp_option != 2)
        c.timestamps = options.tcp_timestamp_option == 1;
    if (options.window_scaling == -1) c.window_scaling = false;
    if (options.window_scaling >= 0) {
        c.window_scaling = true;
        c.receive_buffer_max = std::min(65535u << options.window_scaling, 1u << 30);
        c.receive_buffer = std::min(c.receive_buffer, c.receive_buffer_max);
    }
    if (options.is_set(Opt::tcp_cc_algo))
        c.cc = options.tcp_cc_algo == 0   ? tcp::CcKind::newreno
               : options.tcp_cc_algo == 1 ? tcp::CcKind::cubic
                                          : tcp::CcKind::none;
    return c;
}

tcp::TcpBudget& tcp_budget(const Options& options) {
    static constinit MadeOnce<tcp::TcpBudget> made;
    return made.get([&](tcp::TcpBudget& budget) {
        const long* pages = sysctls().memory;
        if (const uint64_t limit = uint64_t(options.tcp_mem_limit) * 1024)
            budget.set_limits(limit / 2, limit / 4 * 3, limit);
        else if (pages[2] > 0)
            budget.set_limits(uint64_t(pages[0]) * 4096, uint64_t(pages[1]) * 4096,
                              uint64_t(pages[2]) * 4096);
    });
}

uint32_t listen_backlog_limit() { return sysctls().somaxconn; }

uint32_t fast_open_bits() { return sysctls().config.fast_open; }

tcp::FastOpenKeys fast_open_keys() {
    static constinit MadeOnce<tcp::FastOpenKeys> own;
    const tcp::FastOpenKeys kernels = read_fast_open_key();
    if (kernels.count > 0) return kernels;
    return own.get([](tcp::FastOpenKeys& keys) {
        if (getrandom(keys.words[0], sizeof keys.words[0], 0) == sizeof keys.words[0])
            keys.count = 1;
    });
}

IsnSecret timestamp_secret() {
    static constinit MadeOnce<IsnSecret> made;
    return made.get([](IsnSecret& secret) {
        Line boot("/proc/sys/kernel/random/boot_id");
        const size_t n = std::strlen(boot.text);
        if (n > 0)
            secret = {siphash24(1, 2, boot.text, n), siphash24(3, 4, boot.text, n)};
        else if (getrandom(&secret, sizeof secret, GRND_NONBLOCK) != sizeof secret)
            secret = {};
    });
}

uint32_t half_open_limit() { return sysctls().max_half_open; }

PortRange automatic_ports() { return sysctls().ports; }

}  // namespace vma
