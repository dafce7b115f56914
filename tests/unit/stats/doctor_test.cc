// The doctor's findings, each from made-up facts, and the command that goes with it.
#include "stats/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace vma::stats {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

MATCHER_P2(Finds, what, command, "") {
    return testing::ExplainMatchResult(testing::HasSubstr(what), arg.what, result_listener) &&
           testing::ExplainMatchResult(testing::HasSubstr(command), arg.command, result_listener);
}

MachineFacts good_machine() {
    MachineFacts m;
    m.kernel = "6.6.1";
    m.clock_source = "tsc";
    m.governor = "performance";
    m.cpus = 8;
    return m;
}

Process process() {
    Process p;
    p.pid = 17;
    p.page.program = "prog";
    p.page.header.rules_ok = 1;
    return p;
}
void set_option(Process& p, const char* name, const char* value, uint32_t origin) {
    OptionRow& row = p.page.options.emplace_back();
    std::strcpy(row.name, name);
    std::strcpy(row.value, value);
    row.origin = origin;
}
SocketView& add_socket(Process& p, Path path, Reason reason) {
    SocketView& v = p.sockets.emplace_back();
    v.row.id.fd = int(p.sockets.size()) + 2;
    v.row.id.path = path;
    v.row.id.reason = reason;
    return v;
}
void add_rule(Process& p, uint32_t line, RuleUse use, uint32_t covered_by) {
    RuleRow& row = p.page.rules.emplace_back();
    row.line = line;
    row.use = use;
    row.covered_by = covered_by;
    std::strcpy(row.text, "use os tcp_server *:80");
}
ProcessFacts good_facts() {
    ProcessFacts f;
    f.cpus_allowed = 8;
    f.executable = "/usr/bin/prog";
    return f;
}

TEST(Doctor, NothingIsFoundWhereNothingIsWrong) {
    Process p = process();
    add_socket(p, Path::offloaded, Reason::none);
    add_socket(p, Path::kernel, Reason::rule);  // chosen by the user
    set_option(p, "VMA_MEM_ALLOC_TYPE", "2", 0);
    add_rule(p, 1, RuleUse::deciding, 0);
    add_rule(p, 2, RuleUse::other_program, 0);
    EXPECT_THAT(examine(good_machine()), IsEmpty());
    EXPECT_THAT(examine(InterfaceFacts{"eth0", true, true, true, true, true, 4, 4}, ""), IsEmpty());
    EXPECT_THAT(examine(p, good_facts()), IsEmpty());
}

TEST(Doctor, TheMachine) {
    MachineFacts m = good_machine();
    m.kernel = "6.1.0-28-amd64";
    m.clock_source = "hpet";
    m.available_clock_sources = "hpet tsc";
    m.governor = "powersave";
    m.cpus = 1;
    EXPECT_THAT(examine(m), ElementsAre(Finds("6.1.0-28-amd64 has no TCX", "linux-image"),
                                        Finds("clock source is hpet", "echo tsc >"),
                                        Finds("governor powersave", "cpupower"),
                                        Finds("one CPU", "VMA_RX_POLL=0")));
}

TEST(Doctor, AnInterface) {
    const InterfaceFacts slow{"eth0", true, false, true, false, false, 8, 1};
    EXPECT_THAT(examine(slow, ""),
                ElementsAre(Finds("segmentation offload", "ethtool -K eth0 tso on gso on"),
                            Finds("transmit checksum", "ethtool -K eth0 tx on"),
                            Finds("receive checksum", "ethtool -K eth0 rx on"),
                            Finds("all 8 interrupts are served by one CPU", "irqbalance")));
    const std::string prefix = "nsenter --net=/proc/17/ns/net ";
    EXPECT_THAT(examine(InterfaceFacts{"eth0", false, {}, {}, {}, {}, 0, 0}, prefix),
                ElementsAre(Finds("another network namespace", prefix + "vma_stats doctor")));
}

TEST(Doctor, ASocketOfTheKernelIsToldOncePerReason) {
    Process p = process();
    add_socket(p, Path::kernel, Reason::netfilter);
    add_socket(p, Path::kernel, Reason::netfilter);
    add_socket(p, Path::kernel, Reason::capability);
    EXPECT_THAT(examine(p, good_facts()),
                ElementsAre(Finds("fd 3 is the kernel's: netfilter", "VMA_IGNORE_FIREWALL=1"),
                            Finds("cannot open a ring",
                                  "setcap cap_net_admin,cap_net_raw,cap_bpf,"
                                  "cap_perfmon+ep /usr/bin/prog")));
}

TEST(Doctor, RulesThatNeverMatch) {
    Process p = process();
    set_option(p, "VMA_CONFIG_FILE", "/etc/libvma.conf", 0);
    add_rule(p, 1, RuleUse::deciding, 0);
    add_rule(p, 4, RuleUse::covered, 1);
    add_rule(p, 5, RuleUse::other_transport, 0);
    EXPECT_THAT(
        examine(p, good_facts()),
        ElementsAre(
            Finds("rule 'use os tcp_server *:80' (line 4) never matches: the rule in line 1",
                  "sed -i '4d' /etc/libvma.conf && vma_stats --reload -p 17"),
            Finds("(line 5) never matches: sdp and sa", "sed -i '5d'")));
    p.page.rules.clear();
    add_rule(p, 1, RuleUse::other_program, 0);
    add_rule(p, 2, RuleUse::other_program, 0);
    EXPECT_THAT(examine(p, good_facts()),
                ElementsAre(Finds("none of the 2 rules in /etc/libvma.conf is for this program",
                                  "VMA_APPLICATION_ID")));
}

TEST(Doctor, MemoryAndCores) {
    Process p = process();
    set_option(p, "VMA_MEM_ALLOC_TYPE", "2", 3);
    set_option(p, "VMA_RING_KIND", "verbs", 3);
    ProcessFacts f = good_facts();
    f.shmem_huge = "never";
    f.memlock = 8u << 20;
    f.cpus_allowed = 1;
    EXPECT_THAT(examine(p, f),
                ElementsAre(Finds("asks for huge pages and the kernel gives shared memory none",
                                  "echo advise"),
                            Finds("may lock 8192 KiB", "prlimit --pid 17 --memlock=unlimited"),
                            Finds("may run on one CPU", "taskset -acp")));
    f = good_facts();
    f.shmem_huge = "advise";
    EXPECT_THAT(examine(p, f), IsEmpty());
}

TEST(Doctor, WhatWasDroppedAndTheRulesFile) {
    Process p = process();
    p.page.header.rules_ok = 0;
    std::strcpy(p.page.header.rules_text, "libvma.conf:3:1: expected a rule");
    add_socket(p, Path::offloaded, Reason::none).row.numbers.rx_dropped_full = 5;
    RingRow& ring = p.page.rings.emplace_back();
    ring.in_use = 1;
    std::strcpy(ring.id.interface, "eth0");
    ring.numbers.rx_dropped = 9;
    ring.numbers.tcp_pressed = 1;
    EXPECT_THAT(
        examine(p, good_facts()),
        ElementsAre(Finds("rules file could not be used: libvma.conf:3:1", "--reload -p 17"),
                    Finds("fd 3 has dropped 5 datagrams", "net.core.rmem_max"),
                    Finds("ring 0 on eth0 has dropped 9 frames", ""),
                    Finds("TCP came under memory pressure", "VMA_TCP_MEM_LIMIT")));
}

}  // namespace
}  // namespace vma::stats
