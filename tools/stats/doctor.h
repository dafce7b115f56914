// `vma_stats doctor`: what on this machine, or in the settings of a process, makes it slower than it could be or keeps it on
// the kernel's path; each finding with the command that mends it. docs/STATS.md lists them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stats/views.h"

namespace vma::stats {

struct Finding {
    std::string subject;  // "machine", "redis-server (pid 17)", "veth0"
    std::string what;
    std::string command;  // that mends it; "" when there is only advice in `what`
};

// What is looked at, so that a test can make it up.
struct MachineFacts {
    std::string kernel;        // uname -r
    std::string clock_source;  // in use, "" unknown
    std::string available_clock_sources;
    std::string governor;  // of cpu 0, "" when there is none
    unsigned cpus = 1;
};
struct InterfaceFacts {
    std::string name;
    bool same_namespace = true;  // else it cannot be looked at from here
    std::optional<bool> tso, gso, tx_checksum, rx_checksum;
    unsigned irqs = 0, irq_cpus = 0;  // of the device, and CPUs that serve them; 0: none to be seen
};
struct ProcessFacts {
    uint64_t capabilities = 0;  // effective
    bool capabilities_known = false;
    uint64_t memlock = UINT64_MAX;
    unsigned cpus_allowed = 0;
    std::string shmem_huge;  // of the machine: what it does about huge pages of shared memory
    std::string executable;
    std::string namespace_command;  // that brings a command into its network namespace, "" the same
};

std::vector<Finding> examine(const MachineFacts& machine);
std::vector<Finding> examine(const InterfaceFacts& interface, const std::string& prefix);
std::vector<Finding> examine(const Process& process, const ProcessFacts& facts);

MachineFacts machine_facts();
InterfaceFacts interface_facts(const std::string& name, bool same_namespace);
ProcessFacts process_facts(uint32_t pid);

// Looks at all and prints; exit status 0 also when there are findings.
int run_doctor(const std::vector<Process>& processes);

}  // namespace vma::stats
