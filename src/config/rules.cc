// Matching: what a rule set says about an address. The parser is rules_parser.cc.
#include "config/rules.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstring>

namespace vma {
namespace {

constexpr const char* kRoleNames[] = {"tcp_server", "tcp_client", "udp_sender", "udp_receiver",
                                      "udp_connect"};
static_assert(std::size(kRoleNames) == kRoleCount);
constexpr const char* kTransportNames[] = {"os", "vma", "sdp", "sa", "*"};
constexpr const char* kDefaultApplicationId = "VMA_DEFAULT_APPLICATION_ID";

bool same_prefix(const IpAddr& a, const IpAddr& b, unsigned bits) {
    const unsigned whole = bits / 8;
    if (std::memcmp(a.bytes.data(), b.bytes.data(), whole) != 0) return false;
    if (bits % 8 == 0) return true;
    const uint8_t mask = uint8_t(0xff << (8 - bits % 8));
    return ((a.bytes[whole] ^ b.bytes[whole]) & mask) == 0;
}

bool matches_by_transport(Transport t) { return t != Transport::sdp && t != Transport::sa; }

bool rule_matches(const Rule& rule, const Endpoint& first, const Endpoint* second) {
    if (!matches_by_transport(rule.transport) || !rule.first.matches(first)) return false;
    if (!rule.has_second) return true;
    return second != nullptr ? rule.second.matches(*second) : rule.second.catch_all();
}

// The rules of one list: does `earlier` leave nothing for `later`?
bool rule_covers(const Rule& earlier, const Rule& later) {
    if (!matches_by_transport(earlier.transport) || !earlier.first.covers(later.first))
        return false;
    return !earlier.has_second ||
           earlier.second.covers(later.has_second ? later.second : EndpointPattern{});
}

// "*": VMA compares a listener's and a multicast group's result with os, every other one with vma.
bool offload_any(Role role, const Endpoint& first) {
    return role == Role::tcp_server || (role == Role::udp_receiver && first.addr.is_multicast());
}

}  // namespace

const char* role_name(Role r) { return unsigned(r) < kRoleCount ? kRoleNames[unsigned(r)] : "?"; }
const char* transport_name(Transport t) {
    return unsigned(t) < std::size(kTransportNames) ? kTransportNames[unsigned(t)] : "?";
}

bool EndpointPattern::matches(const Endpoint& e) const {
    if (e.port < first_port || e.port > last_port) return false;
    return any_address || same_prefix(address, e.addr, prefix);
}

bool EndpointPattern::covers(const EndpointPattern& other) const {
    if (first_port > other.first_port || last_port < other.last_port) return false;
    if (any_address || other.any_address) return any_address;
    return prefix <= other.prefix && same_prefix(address, other.address, prefix);
}

bool EndpointPattern::catch_all() const {
    const bool every_address = any_address || (address.is_v4() ? prefix == 96 : prefix == 0);
    return every_address && first_port == 0 && last_port == 65535;
}

std::string EndpointPattern::to_text() const {
    std::string out = "*";
    if (!any_address) {
        char text[INET6_ADDRSTRLEN] = "";
        const bool v4 = address.is_v4();
        inet_ntop(v4 ? AF_INET : AF_INET6, address.bytes.data() + (v4 ? 12 : 0), text,
                  sizeof(text));
        out = v4 ? text : fmt::format("[{}]", text);
        const unsigned bits = v4 ? prefix - 96u : prefix;
        if (bits != (v4 ? 32u : 128u)) out += fmt::format("/{}", bits);
    }
    if (first_port == 0 && last_port == 65535) return out + ":*";
    out += fmt::format(":{}", first_port);
    if (last_port != first_port) out += fmt::format("-{}", last_port);
    return out;
}

void Rules::choose_block() {
    deciding_block_ = -1;
    for (size_t i = 0; i < blocks_.size(); ++i) {
        const Block& b = blocks_[i];
        const bool id =
            b.id == "*" || context_.application_id == "*" || b.id == context_.application_id;
        if (id && fnmatch(b.program.c_str(), context_.program.c_str(), 0) == 0) {
            deciding_block_ = int(i);
            return;
        }
    }
}

Decision Rules::decide(Role role, const Endpoint& first, const Endpoint* second) const {
    Decision d;
    if (deciding_block_ < 0 || role >= Role::count) return d;
    for (const Rule& rule : blocks_[size_t(deciding_block_)].lists[unsigned(role)]) {
        if (!rule_matches(rule, first, second)) continue;
        rule.matches.add();
        d.transport = rule.transport;
        d.rule = &rule;
        d.offload = rule.transport == Transport::vma ||
                    (rule.transport == Transport::any && offload_any(role, first));
        return d;
    }
    return d;
}

// A catch-all rule speaks for the list, unless an earlier, narrower rule says otherwise: then only the address decides.
const Rule* Rules::early_list(Role role) const {
    const auto& list = blocks_[size_t(deciding_block_)].lists[unsigned(role)];
    for (size_t i = 0; i < list.size(); ++i) {
        const Rule& rule = list[i];
        if (!matches_by_transport(rule.transport)) continue;
        if (!rule.first.catch_all() || (rule.has_second && !rule.second.catch_all())) continue;
        for (size_t k = 0; k < i; ++k)
            if (matches_by_transport(list[k].transport) && list[k].transport != rule.transport)
                return nullptr;
        return &rule;
    }
    return nullptr;
}

Transport Rules::decide_early(int protocol) const {
    if (deciding_block_ < 0) return Transport::vma;
    const bool tcp = protocol == IPPROTO_TCP;
    const Rule* const a = early_list(tcp ? Role::tcp_server : Role::udp_receiver);
    const Rule* const b = early_list(tcp ? Role::tcp_client : Role::udp_sender);
    if (a == nullptr || b == nullptr || a->transport != Transport::os ||
        b->transport != Transport::os)
        return Transport::vma;
    a->matches.add();
    b->matches.add();
    return Transport::os;
}

bool Rules::application_id_unknown() const {
    return deciding_block_ < 0 && context_.application_id != kDefaultApplicationId;
}

size_t Rules::size() const {
    size_t n = 0;
    for (const Block& b : blocks_)
        for (const auto& list : b.lists) n += list.size();
    return n;
}
bool Rules::empty() const { return size() == 0; }

std::string Rules::table() const {
    std::string out;
    for (size_t i = 0; i < blocks_.size(); ++i) {
        const Block& b = blocks_[i];
        out += fmt::format("application-id {} {}{}\n", b.program, b.id,
                           int(i) == deciding_block_ ? "   <- decides for this program" : "");
        for (const auto& list : b.lists) {
            for (const Rule& r : list) {
                const std::string where =
                    r.line != 0 ? fmt::format("line {}", r.line) : "added at run time";
                const std::string tail = r.has_second ? ":" + r.second.to_text() : "";
                out += fmt::format("    use {} {} {}{}   ({})\n", transport_name(r.transport),
                                   role_name(r.role), r.first.to_text(), tail, where);
            }
        }
    }
    if (out.empty()) out = "no rules: everything is offloaded\n";
    return out;
}

std::vector<RuleReview> Rules::review() const {
    std::vector<RuleReview> out;
    for (size_t i = 0; i < blocks_.size(); ++i) {
        for (const auto& list : blocks_[i].lists) {
            for (const Rule& rule : list) {
                RuleReview& review = out.emplace_back(RuleReview{&rule});
                const auto by = std::find_if(list.data(), &rule, [&](const Rule& earlier) {
                    return rule_covers(earlier, rule);
                });
                if (int(i) != deciding_block_) {
                    review.use = RuleUse::other_program;
                } else if (!matches_by_transport(rule.transport)) {
                    review.use = RuleUse::other_transport;
                } else if (by != &rule) {
                    review.use = RuleUse::covered;
                    review.by = by;
                }
            }
        }
    }
    return out;
}

bool Rules::operator==(const Rules& o) const {
    return blocks_ == o.blocks_ && deciding_block_ == o.deciding_block_ &&
           min_log_level_ == o.min_log_level_;
}

}  // namespace vma
