#include "engine/nft_rules.h"

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>

#include <algorithm>
#include <array>
#include <optional>

namespace vma::nft {

namespace {

constexpr int kDepth = 16;  // the kernel's own limit of nested jumps
constexpr int kBudget =
    100000;  // rules looked at per question; a larger ruleset counts as touching
constexpr uint32_t kNetdevIngress = 0, kNetdevEgress = 1;
constexpr uint32_t kStateEstablished = 2, kStateNew = 8;  // bits of "ct state"

// The 64 register bytes, with what is known of them.
struct Registers {
    std::array<uint8_t, 64> value{};
    std::array<bool, 64> known{};

    void forget(size_t at, size_t n) {
        for (size_t i = at; i < at + n && i < known.size(); i++) known[i] = false;
    }
    void set(size_t at, const uint8_t* bytes, size_t n) {
        for (size_t i = 0; i < n && at + i < known.size(); i++) {
            value[at + i] = bytes[i];
            known[at + i] = true;
        }
    }
    bool knows(size_t at, size_t n) const {
        if (at + n > known.size()) return false;
        return std::all_of(known.begin() + long(at), known.begin() + long(at + n),
                           [](bool k) { return k; });
    }
    // Compares with constants as memcmp would; empty when an unknown byte decides.
    std::optional<int> compare(size_t at, const std::vector<uint8_t>& with) const {
        for (size_t i = 0; i < with.size(); i++) {
            if (at + i >= known.size() || !known[at + i]) return std::nullopt;
            if (value[at + i] != with[i]) return value[at + i] < with[i] ? -1 : 1;
        }
        return 0;
    }
    bool differs(size_t at, const std::vector<uint8_t>& from) const {
        for (size_t i = 0; i < from.size() && at + i < known.size(); i++)
            if (known[at + i] && value[at + i] != from[i]) return true;
        return false;
    }
};

enum class End : uint8_t { open, accepted, returned, touched };

class Evaluation {
  public:
    Evaluation(const Table& t, const PacketFacts& p, FilterEffect& effect, int& budget)
        : table_(t), packet_(p), effect_(effect), budget_(budget) {}

    End run_chain(const Chain& chain, int depth);

  private:
    Match run_step(const Step&, Registers&) const;
    void load(const Step&, Registers&) const;
    void load_payload(const Step&, Registers&) const;
    Match in_set(const Step&, const Registers&) const;
    Match element_at(const Set&, const Registers&, size_t at, const Element** found) const;
    // Ends the rule; `certain`: all its conditions hold.
    End take_verdict(const Chain&, const Rule&, int32_t code, const std::string& target,
                     bool certain, int depth);
    End take_map(const Chain&, const Rule&, const Step&, const Registers&, bool certain, int depth);
    End touch(const Chain&, uint64_t handle, const std::string& how);

    const Table& table_;
    const PacketFacts& packet_;
    FilterEffect& effect_;
    int& budget_;
};

const char* family_name(uint8_t family) {
    switch (family) {
        case NFPROTO_INET:
            return "inet";
        case NFPROTO_IPV4:
            return "ip";
        case NFPROTO_IPV6:
            return "ip6";
        case NFPROTO_NETDEV:
            return "netdev";
        case NFPROTO_BRIDGE:
            return "bridge";
        default:
            return "?";
    }
}

End Evaluation::touch(const Chain& chain, uint64_t handle, const std::string& how) {
    effect_.touched = true;
    effect_.why = std::string("nft ") + family_name(table_.family) + " " + table_.name + " " +
                  chain.name + ": " +
                  (handle ? "rule handle " + std::to_string(handle) + ": " : std::string()) + how;
    return End::touched;
}

void Evaluation::load_payload(const Step& s, Registers& r) const {
    r.forget(s.dreg, s.length);
    const auto put = [&](size_t position, const void* bytes, size_t n) {
        const auto* from = static_cast<const uint8_t*>(bytes);
        for (size_t i = 0; i < n; i++) {
            const size_t at = position + i;
            if (at >= s.offset && at < size_t(s.offset) + s.length)
                r.set(s.dreg + (at - s.offset), from + i, 1);
        }
    };
    if (s.source == Source::transport) {
        uint8_t port[2];
        store_be16(port, packet_.src.port);
        if (packet_.src.port != 0) put(0, port, 2);
        store_be16(port, packet_.dst.port);
        if (packet_.dst.port != 0) put(2, port, 2);
        return;
    }
    if (!packet_.src.addr.is_v4() || !packet_.dst.addr.is_v4()) return;
    put(9, &packet_.protocol, 1);
    if (!packet_.src.addr.is_any()) put(12, packet_.src.addr.bytes.data() + 12, 4);
    if (!packet_.dst.addr.is_any()) put(16, packet_.dst.addr.bytes.data() + 12, 4);
}

void Evaluation::load(const Step& s, Registers& r) const {
    const bool v4 = packet_.src.addr.is_v4();
    const auto put = [&](const auto& v) {
        r.forget(s.dreg, s.length);
        r.set(s.dreg, reinterpret_cast<const uint8_t*>(&v), sizeof(v));
    };
    const auto interface_index = [&](bool present) {
        if (!present)
            put(uint32_t(0));
        else if (packet_.ifindex != 0 && !packet_.bridged)
            put(uint32_t(packet_.ifindex));
        else
            r.forget(s.dreg, s.length);
    };
    const auto interface_name = [&](bool present) {
        std::array<uint8_t, 16> name{};
        if (present && (packet_.interface.empty() || packet_.bridged)) {
            r.forget(s.dreg, s.length);
            return;
        }
        if (present)
            std::copy_n(packet_.interface.begin(), std::min<size_t>(packet_.interface.size(), 15),
                        name.begin());
        put(name);
    };
    switch (s.source) {
        case Source::nfproto:
            put(uint8_t(v4 ? NFPROTO_IPV4 : NFPROTO_IPV6));
            break;
        case Source::l4proto:
            put(packet_.protocol);
            break;
        case Source::ethertype:
            put(__builtin_bswap16(v4 ? 0x0800 : 0x86dd));
            break;
        case Source::iif:
            interface_index(!packet_.outgoing);
            break;
        case Source::oif:
            interface_index(packet_.outgoing);
            break;
        case Source::iifname:
            interface_name(!packet_.outgoing);
            break;
        case Source::oifname:
            interface_name(packet_.outgoing);
            break;
        case Source::ct_state:
            put(packet_.fresh ? kStateNew : kStateEstablished);
            break;
        case Source::network:
        case Source::transport:
            load_payload(s, r);
            break;
        case Source::unknown:
            r.forget(s.dreg, s.length);
            break;
    }
}

Match match_cmp(const Step& s, const Registers& r) {
    const auto order = r.compare(s.sreg, s.a);
    if (!order) {
        if (!r.differs(s.sreg, s.a)) return Match::maybe;
        if (s.how == NFT_CMP_EQ) return Match::no;
        if (s.how == NFT_CMP_NEQ) return Match::yes;
        return Match::maybe;
    }
    bool holds = false;
    switch (s.how) {
        case NFT_CMP_EQ:
            holds = *order == 0;
            break;
        case NFT_CMP_NEQ:
            holds = *order != 0;
            break;
        case NFT_CMP_LT:
            holds = *order < 0;
            break;
        case NFT_CMP_LTE:
            holds = *order <= 0;
            break;
        case NFT_CMP_GT:
            holds = *order > 0;
            break;
        case NFT_CMP_GTE:
            holds = *order >= 0;
            break;
        default:
            return Match::maybe;
    }
    return holds ? Match::yes : Match::no;
}

Match match_range(const Step& s, const Registers& r) {
    const auto low = r.compare(s.sreg, s.a), high = r.compare(s.sreg, s.b);
    if (!low || !high) return Match::maybe;
    const bool inside = *low >= 0 && *high <= 0;
    return inside == (s.how == NFT_RANGE_EQ) ? Match::yes : Match::no;
}

void do_bitwise(const Step& s, Registers& r) {
    for (size_t i = 0; i < s.length && s.sreg + i < 64 && s.dreg + i < 64; i++) {
        const uint8_t mask = i < s.a.size() ? s.a[i] : 0xff, flip = i < s.b.size() ? s.b[i] : 0;
        const bool known = r.known[s.sreg + i] || mask == 0;
        const uint8_t from = r.known[s.sreg + i] ? r.value[s.sreg + i] : 0;
        r.known[s.dreg + i] = known;
        r.value[s.dreg + i] = uint8_t((from & mask) ^ flip);
    }
}

// Little endian hosts: both directions of the conversion swap.
void do_byteorder(const Step& s, Registers& r) {
    const size_t size = s.how;
    if ((size != 2 && size != 4 && size != 8) || !r.knows(s.sreg, s.length)) {
        r.forget(s.dreg, s.length);
        return;
    }
    std::array<uint8_t, 64> out{};
    for (size_t i = 0; i < s.length && s.sreg + i < 64; i++) {
        const size_t within = i % size, element = i - within;
        const size_t from = s.sreg + element + (size - 1 - within);
        if (from < 64) out[i] = r.value[from];
    }
    r.set(s.dreg, out.data(), s.length);
}

Match Evaluation::element_at(const Set& set, const Registers& r, size_t at,
                             const Element** found) const {
    *found = nullptr;
    if (set.elements.empty() && set.exact) return Match::no;
    if (!set.exact) return Match::maybe;
    const Element* best = nullptr;
    const Element* catchall = nullptr;
    for (const Element& e : set.elements) {
        if (e.catchall) {
            catchall = &e;
            continue;
        }
        const auto order = r.compare(at, e.key);
        if (!order) {
            if (!set.interval && r.differs(at, e.key)) continue;
            return Match::maybe;
        }
        if (!set.interval) {
            if (*order == 0) best = &e;
            continue;
        }
        // The greatest start or end that is not above the value decides; an end and a start may have the same key.
        if (*order < 0) continue;
        if (best == nullptr || best->key < e.key || (best->key == e.key && best->end)) best = &e;
    }
    if (best && !best->end) {
        *found = best;
        return Match::yes;
    }
    if (catchall) {
        *found = catchall;
        return Match::yes;
    }
    return Match::no;
}

Match Evaluation::in_set(const Step& s, const Registers& r) const {
    const auto set = table_.sets.find(s.name);
    if (set == table_.sets.end()) return Match::maybe;
    const Element* found = nullptr;
    const Match m = element_at(set->second, r, s.sreg, &found);
    return s.invert ? opposite(m) : m;
}

Match Evaluation::run_step(const Step& s, Registers& r) const {
    switch (s.op) {
        case Op::load:
            load(s, r);
            return Match::yes;
        case Op::constant:
            r.set(s.dreg, s.a.data(), s.a.size());
            return Match::yes;
        case Op::cmp:
            return match_cmp(s, r);
        case Op::range:
            return match_range(s, r);
        case Op::bitwise:
            do_bitwise(s, r);
            return Match::yes;
        case Op::byteorder:
            do_byteorder(s, r);
            return Match::yes;
        case Op::forget:
            r.forget(s.dreg, s.length);
            return Match::yes;
        case Op::lookup: {
            const Match m = in_set(s, r);
            r.forget(s.dreg, s.length);
            return m;
        }
        case Op::ct_states: {
            const bool in = (s.offset & (packet_.fresh ? kStateNew : kStateEstablished)) != 0;
            return in != s.invert ? Match::yes : Match::no;
        }
        default:
            r.forget(0, 64);
            return Match::maybe;
    }
}

End Evaluation::take_verdict(const Chain& chain, const Rule& rule, int32_t code,
                             const std::string& target, bool certain, int depth) {
    switch (code) {
        case NF_ACCEPT:
            return certain ? End::accepted : End::open;
        case NF_DROP:
            return touch(chain, rule.handle, "drop");
        case NFT_CONTINUE:
        case NFT_BREAK:
            return End::open;
        case NFT_RETURN:
            return certain ? End::returned : End::open;
        case NFT_JUMP:
        case NFT_GOTO:
            break;
        default:
            return touch(chain, rule.handle, (code & 0xff) == NF_QUEUE ? "queue" : "verdict");
    }
    const auto next = table_.chains.find(target);
    if (next == table_.chains.end() || depth >= kDepth)
        return touch(chain, rule.handle, "jump to a chain that cannot be followed");
    const End end = run_chain(next->second, depth + 1);
    if (end == End::touched) return end;
    if (!certain) return End::open;
    if (end == End::accepted) return end;
    return code == NFT_GOTO ? End::returned : End::open;
}

End Evaluation::take_map(const Chain& chain, const Rule& rule, const Step& s, const Registers& r,
                         bool certain, int depth) {
    const auto set = table_.sets.find(s.name);
    if (set == table_.sets.end()) return touch(chain, rule.handle, "map " + s.name);
    const Element* found = nullptr;
    const Match m = element_at(set->second, r, s.sreg, &found);
    if (m == Match::no) return End::open;
    if (m == Match::yes)
        return take_verdict(chain, rule, found->verdict, found->chain, certain, depth);
    for (const Element& e : set->second.elements) {
        if (e.end) continue;
        const End end = take_verdict(chain, rule, e.verdict, e.chain, false, depth);
        if (end == End::touched) return end;
    }
    return End::open;
}

End Evaluation::run_chain(const Chain& chain, int depth) {
    for (const Rule& rule : chain.rules) {
        if (--budget_ < 0) return touch(chain, rule.handle, "ruleset too large to tell");
        Registers r;
        bool certain = true;
        for (const Step& s : rule.steps) {
            if (s.op == Op::touch) return touch(chain, rule.handle, s.name);
            if (s.op == Op::mark) {
                if (!effect_.marks && effect_.why.empty())
                    effect_.why = std::string("nft ") + family_name(table_.family) + " " +
                                  table_.name + " " + chain.name + ": rule handle " +
                                  std::to_string(rule.handle) + ": " + s.name;
                effect_.marks = true;
                continue;
            }
            if (s.op == Op::verdict || s.op == Op::verdict_map) {
                const End end = s.op == Op::verdict
                                    ? take_verdict(chain, rule, s.verdict, s.name, certain, depth)
                                    : take_map(chain, rule, s, r, certain, depth);
                if (end != End::open) return end;
                // A map without this key leaves the rule, as does every verdict.
                break;
            }
            const Match m = run_step(s, r);
            if (m == Match::no) break;
            if (m == Match::maybe) certain = false;
        }
    }
    return End::open;
}

bool hook_applies(const Table& t, const Chain& c, const PacketFacts& p) {
    if (!c.base) return false;
    const bool device_matches =
        c.devices.empty() || p.interface.empty() ||
        std::find(c.devices.begin(), c.devices.end(), p.interface) != c.devices.end();
    const bool v4 = p.src.addr.is_v4();
    switch (t.family) {
        case NFPROTO_NETDEV:
            return device_matches && c.hook == (p.outgoing ? kNetdevEgress : kNetdevIngress);
        case NFPROTO_BRIDGE:
            if (!p.bridged) return false;
            break;
        case NFPROTO_IPV4:
            if (!v4) return false;
            break;
        case NFPROTO_IPV6:
            if (v4) return false;
            break;
        case NFPROTO_INET:
            if (c.hook == NF_INET_INGRESS) return device_matches && !p.outgoing;
            break;
        default:
            return false;  // arp
    }
    // Translations are decided by the first packet of a connection.
    if (c.type == "nat" && !p.fresh) return false;
    if (p.outgoing) return c.hook == NF_INET_LOCAL_OUT || c.hook == NF_INET_POST_ROUTING;
    return c.hook == NF_INET_PRE_ROUTING || c.hook == NF_INET_LOCAL_IN;
}

}  // namespace

FilterEffect evaluate(const Ruleset& rules, const PacketFacts& packet) {
    FilterEffect effect;
    int budget = kBudget;
    for (const Table& t : rules.tables) {
        if (t.dormant) continue;
        for (const auto& [name, chain] : t.chains) {
            if (!hook_applies(t, chain, packet)) continue;
            Evaluation e(t, packet, effect, budget);
            const End end = e.run_chain(chain, 0);
            if (end == End::touched) return effect;
            if (end != End::accepted && chain.policy_drop) {
                effect.touched = true;
                effect.why = std::string("nft ") + family_name(t.family) + " " + t.name + " " +
                             name + ": policy drop";
                return effect;
            }
        }
    }
    return effect;
}

}  // namespace vma::nft
