// Rules of the old iptables interface (IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES; linux/netfilter_ipv4/ip_tables.h) and their
// conservative evaluation. iptables-nft rules are seen as nft rules instead. Plain data once read.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/packet_facts.h"

namespace vma::iptables {

struct Table {
    std::string name;
    uint32_t valid_hooks = 0;  // bit per NF_INET_* hook
    std::array<uint32_t, 5> hook_entry{},
        underflow{};               // offsets into entries; underflow: the policy
    std::vector<uint8_t> entries;  // struct ipt_entry, back to back
};

// Reads the tables named in `names` (text of /proc/net/ip_tables_names) through an IPv4 socket of the namespace. Naming a
// table that does not exist would create it, hence the list. EPERM without CAP_NET_ADMIN.
Result<std::vector<Table>> read_tables(int socket_fd, const std::string& names);

FilterEffect evaluate(const std::vector<Table>&, const PacketFacts&);

}  // namespace vma::iptables
