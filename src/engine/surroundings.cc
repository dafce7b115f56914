#include "engine/surroundings.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/sys.h"

namespace vma {
namespace {

void to_log(LogLevel level, std::string_view line) { log_text(level, line); }

// The larger of the sysctl for every interface and that of this one holds.
int arp_setting(const std::string& interface, const char* name) {
    int value = 0;
    for (const std::string& of : {std::string("all"), interface})
        value = std::max(
            value,
            std::atoi(
                read_proc(("/proc/sys/net/ipv4/conf/" + of + "/" + name).c_str(), 16).c_str()));
    return value;
}

bool share_subnet(const Interface& a, const Interface& b) {
    for (const InterfaceAddress& x : a.addresses)
        for (const InterfaceAddress& y : b.addresses) {
            if (!x.addr.is_v4() || !y.addr.is_v4() || x.prefix != y.prefix || x.prefix > 30 ||
                x.prefix == 0)
                continue;
            if (((x.addr.v4_host() ^ y.addr.v4_host()) >> (32 - x.prefix)) == 0) return true;
        }
    return false;
}

// Whether `name` was not told of before. No lock: a forked child would inherit one that is held.
bool first_time(const std::string& name) {
    static std::atomic<uint64_t> told[64];  // 0: free; more than that are not told of
    const uint64_t mark = std::hash<std::string>()(name) | 1;
    for (std::atomic<uint64_t>& place : told) {
        uint64_t there = 0;
        if (place.compare_exchange_strong(there, mark)) return true;
        if (there == mark) return false;
    }
    return false;
}

}  // namespace

std::string read_proc(const char* path, size_t most) {
    std::string text;
    const int fd = int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr(path), O_RDONLY | O_CLOEXEC));
    if (fd < 0) return text;
    text.resize(most);
    size_t got = 0;
    while (got < most) {
        const ssize_t n = sys::read(fd, text.data() + got, most - got);
        if (n == -EINTR) continue;
        if (n <= 0) break;
        got += size_t(n);
    }
    sys::close(fd);
    text.resize(got);
    return text;
}

void warn_at_start(const Options& options, const LineSink& sink) {
    StartupFacts startup;
    startup.level = options.tracelevel;
    // 1 verbs, 2 mlx5.
    startup.needs_locked_memory = options.ring_kind == 1 || options.ring_kind == 2;
    rlimit limit{};
    if (sys::raw(SYS_prlimit64, 0, RLIMIT_MEMLOCK, 0, sys::ptr(&limit)) == 0)
        startup.memlock_hard_limit = limit.rlim_max;
    const std::string arguments = read_proc("/proc/self/cmdline", 4096);
    for (size_t at = 0; at < arguments.size(); at += std::strlen(arguments.c_str() + at) + 1)
        startup.argv.emplace_back(arguments.c_str() + at);
    warn_startup(startup, sink);

    HugePageFacts pages;
    if (options.is_given(Opt::mem_alloc_type)) pages.asked = options.mem_alloc_type;
    if (pages.asked >= 2) {
        // The chosen one is in brackets.
        const std::string text =
            read_proc("/sys/kernel/mm/transparent_hugepage/shmem_enabled", 128);
        const size_t at = text.find('[') + 1, end = text.find(']');
        if (at != 0 && end != std::string::npos && at < end)
            pages.shmem = text.substr(at, end - at);
    }
    warn_huge_pages(pages, sink);
}

void warn_of_arp_flux(const NetworkView& view, const Interface& interface) {
    for (const Interface& other : view.interfaces()) {
        if (other.index == interface.index || !other.up || other.loopback() ||
            !share_subnet(interface, other))
            continue;
        const ArpFluxFacts facts{interface.name, other.name,
                                 arp_setting(interface.name, "arp_ignore"),
                                 arp_setting(interface.name, "arp_announce")};
        return warn_arp_flux(facts, to_log);
    }
}

void warn_of_igmp(const IpAddr& group, const Options& options) {
    if (!group.is_v4() || options.suppress_igmp_warning) return;
    // An interface's line starts in the first column and ends in its version; its groups follow, indented.
    const std::string table = read_proc("/proc/thread-self/net/igmp", 1 << 16);
    char wanted[9];
    std::snprintf(wanted, sizeof wanted, "%08X", __builtin_bswap32(group.v4_host()));
    IgmpFacts facts;
    std::string_view rest = table;
    while (!rest.empty()) {
        const size_t end = std::min(rest.find('\n'), rest.size());
        const std::string line(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
        char name[64], version[8], address[16];
        if (std::sscanf(line.c_str(), "%*d %63[^ :] : %*d %7s", name, version) == 2) {
            facts.interface = name;
            facts.version = version[0] == 'V' ? std::atoi(version + 1) : 0;
        } else if (std::sscanf(line.c_str(), " %15[0-9A-F]", address) == 1 &&
                   std::strcmp(address, wanted) == 0 && facts.version != 2 &&
                   first_time(facts.interface)) {
            warn_igmp(facts, to_log);
        }
    }
}

}  // namespace vma
