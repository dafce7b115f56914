// Who may have what of the broker of a host: the file that `vmad --listen` reads (vmad.conf(5), docs/decisions/0020-broker-of-the-host.md).
//
// A line is a rule, the first that matches a process decides, and one that no rule matches gets nothing:
//
//     user NAME | group NAME | any  [in NAMESPACE,...]  deny
//     user NAME | group NAME | any  [in NAMESPACE,...]  [interface PATTERN,...] [port N,N-M,...] [rings N] [memory MIB] [flows N] [share NAME]
//
// NAMESPACE is of the network: host, the one of vmad itself; own, one that the process's user has made; or a pattern of names as
// ip-netns(8) gives them. A rule that names none is for the host's. Names or numbers; a pattern as a shell has it; ports of the own side, of what is steered; rings and their memory of one
// process; flows that one process may have steered per second. share: processes of different network namespaces whose
// rules have the same name may share memory; by a rule without it none. What else is not named is not limited, but for the protocol's own
// limits. '#' begins a comment.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vmad/namespace.h"

namespace vmad {

struct PortRange {
    uint16_t first = 0, last = 0;
};

// What one rule gives.
struct Allowance {
    bool denied = false;
    std::vector<std::string> interfaces;  // patterns; none: every interface
    std::vector<PortRange> ports;         // none: every port
    uint32_t rings = UINT32_MAX;
    uint64_t memory = UINT64_MAX;  // bytes of all its rings
    uint32_t flows = UINT32_MAX;   // per second, so many at once
    std::string share{};           // name of those who may meet; empty: nobody

    bool has_interface(const char* name) const;
    bool has_port(uint16_t port) const;
};

class Policy {
  public:
    // Without rules: everything is allowed to everybody in the host's namespace, and nothing elsewhere.
    Policy() = default;
    // `name` is that of the file, for what is wrong with it. False: *why, with the line; *this stays as it was.
    bool parse(std::string_view text, const std::string& name, std::string* why);
    // The file; one that is not there is an error, too.
    bool read(const std::string& file, std::string* why);
    const Allowance& of(uid_t user, std::span<const gid_t> groups,
                        const Namespace& where = {}) const;

  private:
    struct Rule {
        enum class Who { user, group, any } who = Who::any;
        uint32_t id = 0;
        std::vector<std::string> namespaces;  // none: the host's
        Allowance allowance;

        bool is_for(uid_t user, std::span<const gid_t> groups) const;
        bool is_in(const Namespace& where, uid_t user) const;
    };
    static bool parse_rule(std::string_view line, Rule& rule, std::string* why);
    std::vector<Rule> rules_;
    bool present_ = false;
};

}  // namespace vmad
