// Rules: libvma.conf as an immutable value. Lexer, parser and match. Grammar: docs/CONF.md; semantics as VMA 9.8, errors
// better: file, line, column and what was expected, and nothing but the rules after the error is lost.
//
// Thread rules: const after construction, share freely; reload replaces the whole value (snapshot.h). Pure: no file is
// opened here.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ip_addr.h"
#include "config/options.h"

namespace vma {

enum class Role : uint8_t { tcp_server, tcp_client, udp_sender, udp_receiver, udp_connect, count };
inline constexpr unsigned kRoleCount = unsigned(Role::count);
const char* role_name(Role);  // "tcp_server"

// os: kernel. vma: offload. sdp and sa are read and never match. any is "*": see Decision::offload.
enum class Transport : uint8_t { os, vma, sdp, sa, any };
const char* transport_name(Transport);  // "os" ... "*"

// An address with prefix and an inclusive port range. IPv4 prefixes count from the 96th bit (IpAddr's mapped form), so an
// IPv4 pattern never matches an IPv6 address; "*" matches both.
struct EndpointPattern {
    bool any_address = true;
    IpAddr address;
    uint8_t prefix = 0;  // bits of the 16 bytes that count
    uint16_t first_port = 0, last_port = 65535;

    bool matches(const Endpoint&) const;
    // Whatever `other` matches, this one matches.
    bool covers(const EndpointPattern& other) const;
    bool catch_all() const;       // *:* or its equal
    std::string to_text() const;  // as in the file
    bool operator==(const EndpointPattern&) const = default;
};

// How often a rule has decided. Counted by every thread; no part of the rule's value.
class Tally {
  public:
    Tally() = default;
    Tally(const Tally& other) : n_(other.count()) {}
    Tally& operator=(const Tally& other) {
        n_.store(other.count(), std::memory_order_relaxed);
        return *this;
    }
    bool operator==(const Tally&) const { return true; }
    void add() const { n_.fetch_add(1, std::memory_order_relaxed); }
    uint64_t count() const { return n_.load(std::memory_order_relaxed); }

  private:
    mutable std::atomic<uint64_t> n_{0};
};

struct Rule {
    Transport transport = Transport::vma;
    Role role = Role::tcp_server;
    EndpointPattern first, second;  // second: local side, tcp_client and udp_connect only
    bool has_second = false;
    uint32_t line = 0;  // in its file; 0: from add_conf_rule
    std::string text;   // the statement as written, without comment and outer blanks
    Tally matches;
    bool operator==(const Rule&) const = default;
};

// What becomes of a rule.
enum class RuleUse : uint8_t {
    deciding = 1,
    other_program,    // its block is for another program or application id
    other_transport,  // sdp and sa
    covered           // `by`, which is earlier, takes all that this one could match
};
struct RuleReview {
    const Rule* rule = nullptr;
    RuleUse use = RuleUse::deciding;
    const Rule* by = nullptr;
};

// What decide() found. `rule` lives as long as the Rules; null when no rule matched.
struct Decision {
    Transport transport = Transport::vma;  // vma when no rule matched
    // The answer. For "*" as VMA: a listener and a multicast group are offloaded (VMA asks there whether the rule says
    // os), everything else goes to the kernel (VMA asks whether the rule says vma). Do not use "*".
    bool offload = true;
    const Rule* rule = nullptr;
    uint32_t line() const { return rule ? rule->line : 0; }
    std::string_view text() const {
        return rule ? std::string_view(rule->text) : std::string_view("no rule");
    }
};

// Who asks: rules are chosen by program and application id once, when the value is made.
struct RuleContext {
    std::string file = "libvma.conf";  // for messages
    std::string program;               // basename of argv[0]
    std::string application_id = "VMA_DEFAULT_APPLICATION_ID";
    bool insert_at_head =
        false;  // a program that has called add_conf_rule reads its file like that
};

struct RuleError {
    uint32_t line = 0, column = 0;  // from 1; column in bytes
    std::string message;            // "file:line:column: expected ..., found ...; rules before ..."
    bool stops = false;  // the rest of the text was not read; else only this statement was left out
};

class Rules {
  public:
    Rules() = default;  // no rules: everything is offloaded

    struct Parsed;
    // Never fails as a whole: what could be read is in Parsed::rules.
    static Parsed parse(std::string_view text, const RuleContext& context);
    // add_conf_rule of the extra API: `text` goes to the head of the role lists; a rule without application-id attaches
    // to the block that was opened last. On an error Parsed::rules still has the statements before it.
    Parsed add(std::string_view text) const;

    // first: tcp_server and udp_receiver local, or group:port; the others remote. second: local side, may be null
    // (unknown: then only its "*" matches). First match in the role's list of the deciding block.
    Decision decide(Role role, const Endpoint& first, const Endpoint* second = nullptr) const;

    // At socket(): os only if the lists of both roles say os for every address. protocol: IPPROTO_TCP or IPPROTO_UDP.
    Transport decide_early(int protocol) const;

    // The application id is not the default one and no block of the file is for it: one warning per process.
    bool application_id_unknown() const;
    bool empty() const;
    size_t size() const;        // rules in all blocks
    std::string table() const;  // for people: one line per rule, the deciding block marked
    std::vector<RuleReview> review() const;  // of each rule, in the order in which they are asked
    const RuleContext& context() const { return context_; }
    int min_log_level() const {
        return min_log_level_;
    }  // "log min-level": stored, without effect as in VMA

    bool operator==(const Rules&) const;

  private:
    friend class RuleParser;
    struct Block {
        std::string program, id;
        std::vector<Rule> lists[kRoleCount];
        bool operator==(const Block&) const = default;
    };
    void choose_block();
    const Rule* early_list(Role) const;

    RuleContext context_;
    std::vector<Block> blocks_;
    int last_block_ = -1;      // the one opened last: where statements without application-id go
    int deciding_block_ = -1;  // first that matches program and id
    int min_log_level_ = 9;
};

struct Rules::Parsed {
    Rules rules;
    std::vector<RuleError> errors;
    std::vector<Note> notes;  // legal but surprising: sdp, *, reversed ports, log statements
    bool ok() const { return errors.empty(); }
};

}  // namespace vma
