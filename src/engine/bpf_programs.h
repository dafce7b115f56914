// Which BPF programs of others handle the packets of this process (bpf(2) BPF_PROG_QUERY). System calls only; needs
// CAP_NET_ADMIN or CAP_BPF, without which EPERM is returned. Descriptors are opened for the length of a call.
#pragma once

#include <string>

#include "base/result.h"

namespace vma {

// Name of a cgroup attach type ("connect4", "egress" ...) with a program in effect for this process and `protocol`
// (IPPROTO_TCP or IPPROTO_UDP); empty: none. ENOENT: no cgroup2 hierarchy is mounted.
Result<std::string> cgroup_program(uint8_t protocol);

// Name of a TCX program on the interface that is not ours (prefix "vma_"); empty: none. EINVAL: kernel before 6.6.
Result<std::string> foreign_tcx_program(int ifindex);

// The whole of a small file under /proc, at most 1 MiB; empty when it cannot be read.
std::string read_proc_file(const char* path);

}  // namespace vma
