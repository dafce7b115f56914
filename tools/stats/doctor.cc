#include "stats/doctor.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "stats/session.h"

namespace vma::stats {
namespace {

constexpr uint64_t bit(int capability) { return uint64_t(1) << capability; }
constexpr uint64_t kRingCapabilities =
    bit(CAP_NET_ADMIN) | bit(CAP_NET_RAW) | bit(CAP_BPF) | bit(CAP_PERFMON);

// First line of a file, "" when it cannot be read.
std::string line_of(const std::string& path) {
    std::ifstream in(path);
    std::string line;
    std::getline(in, line);
    return line;
}

// The number after `label` in a file of "Label: number" lines.
std::optional<long> number_after(const std::string& path, const std::string& label, int base = 10) {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);)
        if (line.rfind(label, 0) == 0) return std::stol(line.substr(label.size()), nullptr, base);
    return std::nullopt;
}

std::string option_of(const Process& p, const char* name) {
    for (const OptionRow& o : p.page.options)
        if (printable(o.name, sizeof o.name) == name) return printable(o.value, sizeof o.value);
    return "";
}

// Set by the user, not built in.
bool asked_for(const Process& p, const char* name) {
    for (const OptionRow& o : p.page.options)
        if (printable(o.name, sizeof o.name) == name) return o.origin != 0;
    return false;
}

// Rules that decide nothing, whoever asks.
void examine_rules(const Process& p, const std::string& who, std::vector<Finding>& out) {
    const std::string file = option_of(p, "VMA_CONFIG_FILE");
    size_t others = 0;
    for (const RuleRow& rule : p.page.rules) {
        others += rule.use == RuleUse::other_program;
        if (rule.use != RuleUse::covered && rule.use != RuleUse::other_transport) continue;
        out.push_back({who,
                       fmt::format("rule '{}' (line {}) {}", printable(rule.text, sizeof rule.text),
                                   rule_line(rule.line), rule_note(rule)),
                       rule.line ? fmt::format("sed -i '{}d' {} && vma_stats --reload -p {}",
                                               rule.line, file, p.pid)
                                 : ""});
    }
    if (others != 0 && others == p.page.rules.size())
        out.push_back({who,
                       fmt::format("none of the {} rules in {} is for this program", others, file),
                       fmt::format("VMA_APPLICATION_ID or the application-id lines of {}", file)});
}

std::optional<bool> ethtool_flag(int fd, const std::string& name, uint32_t command) {
    ifreq request{};
    ethtool_value value{command, 0};
    std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&value);
    if (ioctl(fd, SIOCETHTOOL, &request) != 0) return std::nullopt;
    return value.data != 0;
}

// Interrupt lines of /proc/interrupts that name the interface, and the CPUs that have served them.
void count_interrupts(const std::string& name, InterfaceFacts& out) {
    std::ifstream in("/proc/interrupts");
    std::string line;
    std::getline(in, line);
    std::istringstream head(line);
    const auto cpus = size_t(std::distance(std::istream_iterator<std::string>(head), {}));
    std::set<size_t> served;
    while (std::getline(in, line)) {
        if (line.find(name) == std::string::npos) continue;
        std::istringstream words(line);
        std::string number;
        words >> number;
        out.irqs++;
        uint64_t count;
        for (size_t cpu = 0; cpu < cpus && words >> count; cpu++)
            if (count) served.insert(cpu);
    }
    out.irq_cpus = unsigned(served.size());
}

bool kernel_older_than(const std::string& release, unsigned major, unsigned minor) {
    unsigned a = 0, b = 0;
    return std::sscanf(release.c_str(), "%u.%u", &a, &b) == 2 &&
           (a < major || (a == major && b < minor));
}

}  // namespace

std::vector<Finding> examine(const MachineFacts& m) {
    std::vector<Finding> out;
    if (kernel_older_than(m.kernel, 6, 6))
        out.push_back({"machine",
                       fmt::format("kernel {} has no TCX: no packet ring before 6.6", m.kernel),
                       "apt-get install -t bookworm-backports linux-image-amd64"});
    if (m.clock_source == "hpet" || m.clock_source == "acpi_pm" || m.clock_source == "jiffies") {
        const bool tsc = m.available_clock_sources.find("tsc") != std::string::npos;
        out.push_back(
            {"machine",
             fmt::format("the clock source is {}: each look at the clock is a system call",
                         m.clock_source),
             tsc ? "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"
                 : ""});
    }
    if (!m.governor.empty() && m.governor != "performance")
        out.push_back({"machine",
                       fmt::format("CPU frequency follows the load (governor {}): latencies vary",
                                   m.governor),
                       "cpupower frequency-set -g performance"});
    if (m.cpus == 1)
        out.push_back({"machine",
                       "one CPU: polling takes it from the peer or the rest of the program",
                       "VMA_RX_POLL=0 VMA_SELECT_POLL=0 in the program's environment"});
    return out;
}

std::vector<Finding> examine(const InterfaceFacts& i, const std::string& prefix) {
    std::vector<Finding> out;
    const std::string set = prefix + "ethtool -K " + i.name + " ";
    if (!i.same_namespace) {
        out.push_back({i.name, "is in another network namespace than this command: not looked at",
                       prefix + "vma_stats doctor"});
        return out;
    }
    if (i.tso == false || i.gso == false)
        out.push_back({i.name, "segmentation offload is off: large TCP sends leave in small frames",
                       set + "tso on gso on"});
    if (i.tx_checksum == false)
        out.push_back({i.name, "transmit checksum offload is off: the library adds the sums up",
                       set + "tx on"});
    if (i.rx_checksum == false)
        out.push_back({i.name, "receive checksum offload is off: the library checks the sums",
                       set + "rx on"});
    if (i.irqs > 1 && i.irq_cpus == 1)
        out.push_back({i.name, fmt::format("all {} interrupts are served by one CPU", i.irqs),
                       "systemctl start irqbalance"});
    return out;
}

// Whether a setting or command makes the socket ours, and nobody has chosen the kernel for it.
bool can_be_mended(Reason why) {
    switch (why) {
        case Reason::offload_off:
        case Reason::ipv6:
        case Reason::no_route:
        case Reason::interface_unsupported:
        case Reason::capability:
        case Reason::ring_failed:
        case Reason::flow_taken:
        case Reason::netfilter:
        case Reason::xfrm:
        case Reason::cgroup_program:
        case Reason::traffic_control:
        case Reason::mark_routing:
        case Reason::memory:
        case Reason::fd_limit:
        case Reason::init_failed:
        case Reason::broker_gone:
        case Reason::broker_policy:
        case Reason::broker_denied:
        case Reason::no_thread:
            return true;
        default:
            return false;
    }
}

std::vector<Finding> examine(const Process& p, const ProcessFacts& f) {
    std::vector<Finding> out;
    const std::string who = fmt::format("{} (pid {})", p.page.program, p.pid);
    std::set<Reason> told;
    for (const SocketView& v : p.sockets) {
        const Reason why = v.row.id.reason;
        if (!v.in_page || v.row.id.path != Path::kernel || !can_be_mended(why) ||
            !told.insert(why).second)
            continue;
        if (why == Reason::capability)
            out.push_back(
                {who,
                 f.capabilities_known && (f.capabilities & kRingCapabilities) == kRingCapabilities
                     ? "a ring could not be opened for want of a capability, which it has by now"
                     : "cannot open a ring: " + std::string(reason_meaning(why)),
                 "setcap cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon+ep " +
                     (f.executable.empty() ? "PROGRAM" : f.executable)});
        else
            out.push_back({who,
                           fmt::format("fd {} is the kernel's: {}: {}", v.row.id.fd,
                                       reason_name(why), reason_meaning(why)),
                           reason_advice(why)});
    }
    if (!p.page.header.rules_ok && p.page.header.rules_text[0])
        out.push_back({who,
                       "its rules file could not be used: " +
                           printable(p.page.header.rules_text, sizeof p.page.header.rules_text),
                       fmt::format("vma_stats --reload -p {}", p.pid)});
    examine_rules(p, who, out);
    const std::string pages = option_of(p, "VMA_MEM_ALLOC_TYPE");
    if (asked_for(p, "VMA_MEM_ALLOC_TYPE") && (pages == "2" || pages == "3") &&
        (f.shmem_huge == "never" || f.shmem_huge == "deny"))
        out.push_back({who,
                       fmt::format("VMA_MEM_ALLOC_TYPE={} asks for huge pages and the kernel gives "
                                   "shared memory none: ordinary pages are used",
                                   pages),
                       "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"});
    const std::string kind = option_of(p, "VMA_RING_KIND");
    if ((kind == "verbs" || kind == "mlx5" || kind == "xdp") && f.memlock != UINT64_MAX)
        out.push_back({who,
                       fmt::format("may lock {} KiB of memory; ring kind {} registers its buffers",
                                   f.memlock / 1024, kind),
                       fmt::format("prlimit --pid {} --memlock=unlimited", p.pid)});
    if (f.cpus_allowed == 1)
        out.push_back(
            {who, "may run on one CPU: its polling threads and the library's own share it",
             fmt::format("taskset -acp 0-{} {}", sysconf(_SC_NPROCESSORS_ONLN) - 1, p.pid)});
    for (const SocketView& v : p.sockets)
        if (v.in_page && v.row.numbers.rx_dropped_full > 0)
            out.push_back({who,
                           fmt::format("fd {} has dropped {} datagrams: its receive buffer is full",
                                       v.row.id.fd, v.row.numbers.rx_dropped_full),
                           "sysctl -w net.core.rmem_max=8388608 net.core.rmem_default=8388608"});
    for (size_t i = 0; i < p.page.rings.size(); i++) {
        const RingRow& ring = p.page.rings[i];
        if (ring.in_use && ring.numbers.rx_dropped > 0)
            out.push_back(
                {who,
                 fmt::format("ring {} on {} has dropped {} frames: nobody read them in time", i,
                             printable(ring.id.interface, sizeof ring.id.interface),
                             ring.numbers.rx_dropped),
                 ""});
        if (ring.in_use && ring.numbers.tcp_pressed > 0)
            out.push_back({who, "TCP came under memory pressure",
                           "VMA_TCP_MEM_LIMIT in its environment, larger"});
    }
    return out;
}

MachineFacts machine_facts() {
    MachineFacts m;
    utsname name;
    if (uname(&name) == 0) m.kernel = name.release;
    const std::string clocks = "/sys/devices/system/clocksource/clocksource0/";
    m.clock_source = line_of(clocks + "current_clocksource");
    m.available_clock_sources = line_of(clocks + "available_clocksource");
    m.governor = line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    m.cpus = unsigned(sysconf(_SC_NPROCESSORS_ONLN));
    return m;
}

InterfaceFacts interface_facts(const std::string& name, bool same_namespace) {
    InterfaceFacts out;
    out.name = name;
    out.same_namespace = same_namespace;
    const int fd = same_namespace ? socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0) return out;
    out.tso = ethtool_flag(fd, name, ETHTOOL_GTSO);
    out.gso = ethtool_flag(fd, name, ETHTOOL_GGSO);
    out.tx_checksum = ethtool_flag(fd, name, ETHTOOL_GTXCSUM);
    out.rx_checksum = ethtool_flag(fd, name, ETHTOOL_GRXCSUM);
    close(fd);
    count_interrupts(name, out);
    return out;
}

ProcessFacts process_facts(uint32_t pid) {
    ProcessFacts out;
    const std::string folder = fmt::format("/proc/{}/", pid);
    if (const auto effective = number_after(folder + "status", "CapEff:", 16)) {
        out.capabilities = uint64_t(*effective);
        out.capabilities_known = true;
    }
    rlimit limit{};
    if (prlimit(pid_t(pid), RLIMIT_MEMLOCK, nullptr, &limit) == 0 &&
        limit.rlim_cur != RLIM_INFINITY)
        out.memlock = limit.rlim_cur;
    cpu_set_t cpus;
    if (sched_getaffinity(pid_t(pid), sizeof cpus, &cpus) == 0)
        out.cpus_allowed = unsigned(CPU_COUNT(&cpus));
    std::ifstream choices("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    for (std::string word; choices >> word;)  // the chosen one is in brackets
        if (word.starts_with('[') && word.ends_with(']'))
            out.shmem_huge = word.substr(1, word.size() - 2);
    char path[4096];
    const ssize_t n = readlink((folder + "exe").c_str(), path, sizeof path);
    if (n > 0) out.executable.assign(path, size_t(n));
    struct stat mine {
    }, its{};
    if (stat("/proc/self/ns/net", &mine) == 0 && stat((folder + "ns/net").c_str(), &its) == 0 &&
        mine.st_ino != its.st_ino)
        out.namespace_command = fmt::format("nsenter --net=/proc/{}/ns/net ", pid);
    return out;
}

int run_doctor(const std::vector<Process>& processes) {
    std::vector<Finding> all = examine(machine_facts());
    std::set<std::string> seen;
    const auto add = [&](std::vector<Finding> more) {
        for (Finding& finding : more)
            if (seen.insert(finding.subject + finding.what).second)
                all.push_back(std::move(finding));
    };
    for (const Process& p : processes) {
        const ProcessFacts facts = process_facts(p.pid);
        add(examine(p, facts));
        for (const RingRow& ring : p.page.rings)
            if (ring.in_use && ring.id.open)
                add(examine(interface_facts(printable(ring.id.interface, sizeof ring.id.interface),
                                            facts.namespace_command.empty()),
                            facts.namespace_command));
    }
    for (const Finding& finding : all) {
        print(fmt::format("{}: {}\n", finding.subject, finding.what));
        if (!finding.command.empty()) print(fmt::format("    {}\n", finding.command));
    }
    print(fmt::format("{} finding{}, {} process{} looked at\n", all.size(),
                      all.size() == 1 ? "" : "s", processes.size(),
                      processes.size() == 1 ? "" : "es"));
    return 0;
}

}  // namespace vma::stats
