#include "engine/iptables_legacy.h"

#include <linux/netfilter.h>
#include <linux/netfilter/xt_conntrack.h>
#include <linux/netfilter/xt_tcpudp.h>
#include <linux/netfilter_ipv4/ip_tables.h>

#include <algorithm>
#include <cstring>

#include "base/sys.h"

namespace vma::iptables {

namespace {

constexpr int kDepth = 32, kBudget = 100000;
constexpr size_t kLargestTable = 64u << 20;
constexpr uint32_t kStateEstablished = 2, kStateNew = 8;

template <class T>
bool copy_at(const std::vector<uint8_t>& bytes, size_t at, T& out) {
    if (at > bytes.size() || bytes.size() - at < sizeof(T)) return false;
    std::memcpy(&out, bytes.data() + at, sizeof(T));
    return true;
}

Match known(bool holds) { return holds ? Match::yes : Match::no; }
Match invert_if(Match m, bool invert) { return invert ? opposite(m) : m; }
Match both(Match a, Match b) {
    if (a == Match::no || b == Match::no) return Match::no;
    return a == Match::yes && b == Match::yes ? Match::yes : Match::maybe;
}

Match match_address(const IpAddr& a, in_addr want, in_addr mask, bool invert) {
    if (mask.s_addr == 0) return invert_if(Match::yes, invert);
    if (a.is_any()) return Match::maybe;
    uint32_t raw;
    std::memcpy(&raw, a.bytes.data() + 12, 4);
    return invert_if(known((raw & mask.s_addr) == want.s_addr), invert);
}

Match match_interface(const std::string& name, bool present, const char* want,
                      const unsigned char* mask, bool invert) {
    if (std::all_of(mask, mask + IFNAMSIZ, [](unsigned char m) { return m == 0; }))
        return invert_if(Match::yes, invert);
    if (present && name.empty()) return Match::maybe;
    std::array<char, IFNAMSIZ> have{};
    if (present) std::copy_n(name.begin(), std::min<size_t>(name.size(), 15), have.begin());
    for (size_t i = 0; i < IFNAMSIZ; i++)
        if (((uint8_t(have[i]) ^ uint8_t(want[i])) & mask[i]) != 0) return known(invert);
    return known(!invert);
}

Match match_port(const uint16_t range[2], uint16_t port, bool invert) {
    if (range[0] == 0 && range[1] == 0xffff) return known(!invert);
    if (port == 0) return Match::maybe;
    return known((range[0] <= port && port <= range[1]) != invert);
}

Match match_ip(const ipt_ip& ip, const PacketFacts& p) {
    const auto inverted = [&ip](unsigned bit) { return (ip.invflags & bit) != 0; };
    Match m = match_address(p.src.addr, ip.src, ip.smsk, inverted(IPT_INV_SRCIP));
    m = both(m, match_address(p.dst.addr, ip.dst, ip.dmsk, inverted(IPT_INV_DSTIP)));
    m = both(m, match_interface(p.interface, !p.outgoing, ip.iniface, ip.iniface_mask,
                                inverted(IPT_INV_VIA_IN)));
    m = both(m, match_interface(p.interface, p.outgoing, ip.outiface, ip.outiface_mask,
                                inverted(IPT_INV_VIA_OUT)));
    if (ip.proto != 0) m = both(m, known((ip.proto == p.protocol) != inverted(IPT_INV_PROTO)));
    if (ip.flags & IPT_F_FRAG) m = both(m, Match::maybe);
    return m;
}

Match match_extension(const std::vector<uint8_t>& bytes, size_t at, const PacketFacts& p,
                      size_t* size) {
    xt_entry_match head;
    *size = 0;
    if (!copy_at(bytes, at, head) || head.u.match_size < sizeof(head)) return Match::maybe;
    *size = head.u.match_size;
    const std::string name(head.u.user.name, strnlen(head.u.user.name, sizeof(head.u.user.name)));
    const size_t data = at + sizeof(head);
    if (name == "comment") return Match::yes;
    xt_tcp tcp;
    if (name == "tcp" && copy_at(bytes, data, tcp)) {
        Match m = match_port(tcp.spts, p.src.port, (tcp.invflags & XT_TCP_INV_SRCPT) != 0);
        m = both(m, match_port(tcp.dpts, p.dst.port, (tcp.invflags & XT_TCP_INV_DSTPT) != 0));
        return tcp.flg_mask != 0 || tcp.option != 0 ? both(m, Match::maybe) : m;
    }
    xt_udp udp;
    if (name == "udp" && copy_at(bytes, data, udp)) {
        const Match m = match_port(udp.spts, p.src.port, (udp.invflags & XT_UDP_INV_SRCPT) != 0);
        return both(m, match_port(udp.dpts, p.dst.port, (udp.invflags & XT_UDP_INV_DSTPT) != 0));
    }
    xt_conntrack_mtinfo3 ct;
    if (name == "conntrack" && head.u.user.revision == 3 && copy_at(bytes, data, ct) &&
        ct.match_flags == XT_CONNTRACK_STATE) {
        const bool in = (ct.state_mask & (p.fresh ? kStateNew : kStateEstablished)) != 0;
        return known(in != ((ct.invert_flags & XT_CONNTRACK_STATE) != 0));
    }
    return Match::maybe;
}

enum class End : uint8_t { accepted, returned, touched };

struct Walk {
    const Table& table;
    const PacketFacts& packet;
    FilterEffect& effect;
    int budget = kBudget;

    End touch(size_t at, const std::string& how) {
        effect.touched = true;
        effect.why = "iptables " + table.name + ": entry at " + std::to_string(at) + ": " + how;
        return End::touched;
    }
    End run(size_t at, int depth);
    // The target of the entry at `at`. Empty: go on with the next entry.
    bool take_target(size_t at, const ipt_entry& e, bool certain, int depth, End& end);
};

bool Walk::take_target(size_t at, const ipt_entry& e, bool certain, int depth, End& end) {
    xt_entry_target head;
    int32_t verdict = 0;
    if (!copy_at(table.entries, at + e.target_offset, head)) {
        end = touch(at, "unreadable target");
        return true;
    }
    const std::string name(head.u.user.name, strnlen(head.u.user.name, sizeof(head.u.user.name)));
    if (name == XT_ERROR_TARGET) {
        end = End::returned;
        return true;
    }
    if (name != XT_STANDARD_TARGET) {
        for (const char* harmless : {"LOG", "NFLOG", "CT", "NOTRACK", "CHECKSUM", "TRACE", "AUDIT"})
            if (name == harmless) return false;
        if (name == "MARK" || name == "CONNMARK") {
            if (effect.why.empty()) effect.why = "iptables " + table.name + ": " + name;
            effect.marks = true;
            return false;
        }
        end = touch(at, name);
        return true;
    }
    if (!copy_at(table.entries, at + e.target_offset + sizeof(head), verdict)) {
        end = touch(at, "unreadable verdict");
        return true;
    }
    if (verdict < 0) {
        end = verdict == XT_RETURN ? End::returned : End::accepted;
        if (verdict != XT_RETURN && -verdict - 1 != NF_ACCEPT)
            end = touch(at, -verdict - 1 == NF_DROP ? "drop" : "queue");
        return end == End::touched || certain;
    }
    if (size_t(verdict) == at + e.next_offset) return false;
    const bool jump_only = (e.ip.flags & IPT_F_GOTO) == 0;
    const End inner = depth < kDepth ? run(size_t(verdict), depth + 1) : touch(at, "deep jump");
    end = inner;
    if (inner == End::touched) return true;
    if (!certain) return false;
    return inner == End::accepted || !jump_only;
}

End Walk::run(size_t at, int depth) {
    for (;;) {
        ipt_entry e;
        if (--budget < 0) return touch(at, "ruleset too large to tell");
        if (!copy_at(table.entries, at, e) || e.next_offset < sizeof(e) ||
            e.target_offset < sizeof(e) || e.target_offset > e.next_offset)
            return touch(at, "unreadable entry");
        Match m = match_ip(e.ip, packet);
        for (size_t in = sizeof(e); in < e.target_offset && m != Match::no;) {
            size_t size = 0;
            m = both(m, match_extension(table.entries, at + in, packet, &size));
            if (size == 0) break;
            in += size;
        }
        End end = End::returned;
        if (m != Match::no && take_target(at, e, m == Match::yes, depth, end)) return end;
        at += e.next_offset;
    }
}

}  // namespace

Result<std::vector<Table>> read_tables(int socket_fd, const std::string& names) {
    std::vector<Table> tables;
    for (size_t at = 0; at < names.size();) {
        const size_t end = std::min(names.find('\n', at), names.size());
        const std::string name = names.substr(at, end - at);
        at = end + 1;
        if (name.empty() || name.size() >= XT_TABLE_MAXNAMELEN) continue;
        ipt_getinfo info{};
        std::memcpy(info.name, name.data(), name.size());
        socklen_t len = sizeof(info);
        int err = sys::getsockopt(socket_fd, IPPROTO_IP, IPT_SO_GET_INFO, &info, &len);
        if (err == -ENOENT) continue;
        if (err != 0) return Errno{-err};
        if (info.size > kLargestTable) return Errno{EMSGSIZE};
        std::vector<uint8_t> answer(sizeof(ipt_get_entries) + info.size);
        ipt_get_entries head{};
        std::memcpy(head.name, name.data(), name.size());
        head.size = info.size;
        std::memcpy(answer.data(), &head, sizeof(head));
        len = socklen_t(answer.size());
        err = sys::getsockopt(socket_fd, IPPROTO_IP, IPT_SO_GET_ENTRIES, answer.data(), &len);
        if (err != 0) return Errno{-err};  // EAGAIN: changed in between, read again
        Table t;
        t.name = name;
        t.valid_hooks = info.valid_hooks;
        std::copy_n(info.hook_entry, 5, t.hook_entry.begin());
        std::copy_n(info.underflow, 5, t.underflow.begin());
        t.entries.assign(answer.begin() + long(offsetof(ipt_get_entries, entrytable)),
                         answer.end());
        tables.push_back(std::move(t));
    }
    return tables;
}

FilterEffect evaluate(const std::vector<Table>& tables, const PacketFacts& packet) {
    FilterEffect effect;
    if (!packet.src.addr.is_v4()) return effect;
    for (const Table& t : tables) {
        if (t.name == "nat" && !packet.fresh) continue;
        for (const unsigned hook :
             {NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING}) {
            const bool out = hook == NF_INET_LOCAL_OUT || hook == NF_INET_POST_ROUTING;
            if (out != packet.outgoing || (t.valid_hooks >> hook & 1) == 0) continue;
            Walk walk{t, packet, effect};
            End end = walk.run(t.hook_entry[hook], 0);
            if (end == End::returned) end = walk.run(t.underflow[hook], 0);
            if (end == End::touched) return effect;
        }
    }
    return effect;
}

}  // namespace vma::iptables
