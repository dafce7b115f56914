#include "config/warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace vma {
namespace {

constexpr const char kStars[] =
    "***************************************************************************";

void box(const LineSink& sink, std::initializer_list<std::string> lines) {
    sink(LogLevel::warning, kStars);
    for (const std::string& line : lines) sink(LogLevel::warning, "* " + line);
    sink(LogLevel::warning, kStars);
}

bool has_argument(const std::vector<std::string>& argv, const char* argument) {
    return std::find(argv.begin(), argv.end(), argument) != argv.end();
}

}  // namespace

void warn_startup(const StartupFacts& f, const LineSink& sink) {
    if (f.level >= LogLevel::debug)
        box(sink, {fmt::format(
                       "The log level is {}: every call is slower and latency figures mean little.",
                       log_level_name(f.level)),
                   "For the usual speed unset VMA_TRACELEVEL, or set it to info;",
                   "VMA_LOG_FILE moves the lines away from the terminal."});
    if (f.needs_locked_memory && f.memlock_hard_limit != UINT64_MAX)
        box(sink, {fmt::format("The hard limit of locked memory is {} KiB; the rings verbs and "
                               "mlx5 want it unlimited.",
                               f.memlock_hard_limit / 1024),
                   "Raise it (ulimit -Hl unlimited, or memlock in /etc/security/limits.conf,",
                   "or LimitMEMLOCK=infinity in a unit), or use VMA_RING_KIND=packet."});
    const bool netserver =
        !f.argv.empty() && f.argv[0].substr(f.argv[0].rfind('/') + 1) == "netserver";
    if (netserver && !(has_argument(f.argv, "-D") && has_argument(f.argv, "-f"))) {
        sink(LogLevel::warning, "netserver forks for each test unless it is started with -D -f:");
        sink(LogLevel::warning,
             "the child's connection is handed back to the kernel and not accelerated");
    }
}

void warn_huge_pages(const HugePageFacts& f, const LineSink& sink) {
    if (f.asked < 2 || !(f.shmem.empty() || f.shmem == "never" || f.shmem == "deny")) return;
    box(sink,
        {fmt::format("VMA_MEM_ALLOC_TYPE={} asks for huge pages; the kernel gives shared memory "
                     "none ({}).",
                     f.asked, f.shmem.empty() ? "no shmem_enabled" : f.shmem),
         "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled settles it;",
         "without this message: unset VMA_MEM_ALLOC_TYPE."});
}

void warn_igmp(const IgmpFacts& f, const LineSink& sink) {
    if (f.suppressed || f.version == 0 || f.version == 2) return;
    box(sink, {fmt::format(
                   "Interface {} speaks IGMPv{}; switches that filter multicast may expect IGMPv2.",
                   f.interface, f.version),
               fmt::format("To force version 2: sysctl -w net.ipv4.conf.{}.force_igmp_version=2;",
                           f.interface),
               "without this message: VMA_SUPPRESS_IGMP_WARNING=1."});
}

void warn_arp_flux(const ArpFluxFacts& f, const LineSink& sink) {
    if (f.other.empty() || (f.arp_ignore >= 1 && f.arp_announce >= 2)) return;
    box(sink,
        {fmt::format("Interfaces {} and {} have addresses in one subnet and either may answer ARP "
                     "for the other",
                     f.interface, f.other),
         fmt::format("(arp_ignore={}, arp_announce={}): packets can arrive on the wrong ring.",
                     f.arp_ignore, f.arp_announce),
         fmt::format("sysctl -w net.ipv4.conf.{0}.arp_ignore=1 net.ipv4.conf.{0}.arp_announce=2 "
                     "settles it.",
                     f.interface)});
}

std::string missing_capability_line(const CapabilityFacts& f) {
    return fmt::format(
        "interface {}: no ring, its sockets stay with the kernel: {}; start the program as root, "
        "or "
        "with ambient capabilities (AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_BPF "
        "CAP_PERFMON in a unit, setpriv --ambient-caps); those of a file (setcap) make the loader "
        "ignore LD_PRELOAD",
        f.interface, f.missing);
}

}  // namespace vma
