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
        box(sink,
            {fmt::format(
                 "The hard limit of locked memory is {} KiB; the ring in use wants it unlimited.",
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
    if (!f.wanted || f.allocated || f.page_bytes == 0) return;
    const uint64_t needed = (f.needed_bytes + f.page_bytes - 1) / f.page_bytes;
    box(sink, {fmt::format("No huge pages: {} of {} KiB are needed, {} of {} are free; using {}.",
                           needed, f.page_bytes / 1024, f.free_pages, f.total_pages, f.fallback),
               fmt::format("For huge pages: sysctl -w vm.nr_hugepages={}, or smaller VMA_RX_BUFS "
                           "and VMA_TX_BUFS;",
                           f.total_pages + (needed > f.free_pages ? needed - f.free_pages : 0)),
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

void warn_missing_capability(const CapabilityFacts& f, const LineSink& sink) {
    if (f.daemon_reachable) return;
    box(sink,
        {fmt::format("No {}: no ring can be opened on {}, its sockets stay with the kernel.",
                     f.capability, f.interface),
         "Start the program as root, or start the daemon vmad, or give the file the capabilities:",
         fmt::format("setcap cap_net_raw,cap_net_admin,cap_bpf+ep {}", f.program)});
}

void warn_cannot_preload(const PreloadFacts& f, const LineSink& sink) {
    switch (f.obstacle) {
        case PreloadFacts::Obstacle::none:
            return;
        case PreloadFacts::Obstacle::secure_execution:
            sink(LogLevel::warning,
                 fmt::format("{} cannot be preloaded: it is set-user-id or has file capabilities, "
                             "and the loader then "
                             "takes libraries from the system directories only; install libvma.so "
                             "there (set-user-id "
                             "bit on the library) or start the program as the user it becomes",
                             f.program));
            return;
        case PreloadFacts::Obstacle::statically_linked:
            sink(LogLevel::warning,
                 fmt::format(
                     "{} cannot be preloaded: it is statically linked and uses no shared libc",
                     f.program));
            return;
        case PreloadFacts::Obstacle::other_machine:
            sink(LogLevel::warning, fmt::format("{} cannot be preloaded: it is built for another "
                                                "machine or word size than libvma.so",
                                                f.program));
            return;
    }
}

void warn_pacing(const PacingFacts& f, const LineSink& sink) {
    if (f.wanted_bytes_per_sec == 0 || (f.device_paces && f.ring_is_per_socket)) return;
    sink(LogLevel::warning,
         fmt::format("SO_MAX_PACING_RATE {} bytes/s is not applied by {}: {}",
                     f.wanted_bytes_per_sec, f.interface,
                     !f.device_paces
                         ? "the device cannot pace; packets leave unpaced"
                         : "pacing needs a ring per socket, set VMA_RING_ALLOCATION_LOGIC_TX=10"));
}

void warn_no_daemon(const DaemonFacts& f, const LineSink& sink) {
    if (f.reachable) return;
    if (!f.needed) {
        sink(LogLevel::debug,
             fmt::format("no daemon in {} (VMA_VMAD_NOTIFY_DIR); none is needed", f.directory));
        return;
    }
    box(sink, {fmt::format("The daemon vmad does not answer in {}; without it there is no {}.",
                           f.directory, f.needed_for),
               fmt::format("Start it (systemctl start vmad, or vmad --notify-dir {})", f.directory),
               "or point VMA_VMAD_NOTIFY_DIR at its directory."});
}

}  // namespace vma
