#include "engine/kernel_policy.h"

#include <linux/netfilter/nfnetlink.h>
#include <linux/xfrm.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/bpf_programs.h"
#include "engine/iptables_legacy.h"
#include "engine/network_monitor.h"
#include "engine/nft_rules.h"

namespace vma {

namespace {

constexpr int kReadAttempts = 5;  // a ruleset that changes while it is read
constexpr Duration kRecheckEvery = Duration::seconds(1);
// Default policies of XFRM, younger than the headers of Debian 12.
constexpr uint16_t kXfrmGetDefault = 0x28;
constexpr uint8_t kXfrmBlock = 1;

struct XfrmPolicy {
    uint8_t direction = 0;
    uint8_t protocol = 0;
    int ifindex = 0;
    uint32_t src = 0, dst = 0;  // host order
    uint8_t src_prefix = 0, dst_prefix = 0;
    uint16_t sport = 0, sport_mask = 0, dport = 0, dport_mask = 0;
    uint32_t index = 0;
};

uint32_t mask_of(unsigned prefix) {
    return prefix == 0 ? 0 : ~uint32_t(0) << (32 - std::min(prefix, 32u));
}

bool address_can_match(const IpAddr& a, uint32_t want, uint8_t prefix) {
    return a.is_any() || ((a.v4_host() ^ want) & mask_of(prefix)) == 0;
}

bool port_can_match(uint16_t port, uint16_t want, uint16_t mask) {
    return port == 0 || ((port ^ want) & mask) == 0;
}

bool can_match(const XfrmPolicy& p, const FlowQuery& q) {
    const bool out = p.direction == XFRM_POLICY_OUT;
    const Endpoint& src = out ? q.local : q.remote;
    const Endpoint& dst = out ? q.remote : q.local;
    if (p.protocol != 0 && p.protocol != q.protocol) return false;
    if (p.ifindex != 0 && q.ifindex != 0 && p.ifindex != q.ifindex) return false;
    return address_can_match(src.addr, p.src, p.src_prefix) &&
           address_can_match(dst.addr, p.dst, p.dst_prefix) &&
           port_can_match(src.port, p.sport, p.sport_mask) &&
           port_can_match(dst.port, p.dport, p.dport_mask);
}

// A policy that says "pass untouched" is harmless; so are those of other families and of forwarded packets.
std::optional<XfrmPolicy> parse_policy(const netlink::Message& m) {
    if (m.body.size() < sizeof(xfrm_userpolicy_info)) return std::nullopt;
    const auto info = m.head<xfrm_userpolicy_info>();
    if (info.sel.family != AF_INET && info.sel.family != AF_UNSPEC) return std::nullopt;
    if (info.dir != XFRM_POLICY_IN && info.dir != XFRM_POLICY_OUT) return std::nullopt;
    const netlink::Attributes<XFRMA_MAX + 1> a(m.attributes(sizeof(xfrm_userpolicy_info)));
    if (info.action == XFRM_POLICY_ALLOW && a[XFRMA_TMPL].empty()) return std::nullopt;
    XfrmPolicy p;
    p.direction = info.dir;
    p.protocol = info.sel.proto;
    p.ifindex = info.sel.ifindex;
    p.src = load_be32(&info.sel.saddr.a4);
    p.dst = load_be32(&info.sel.daddr.a4);
    p.src_prefix = info.sel.prefixlen_s;
    p.dst_prefix = info.sel.prefixlen_d;
    p.sport = load_be16(&info.sel.sport);
    p.sport_mask = load_be16(&info.sel.sport_mask);
    p.dport = load_be16(&info.sel.dport);
    p.dport_mask = load_be16(&info.sel.dport_mask);
    p.index = info.index;
    return p;
}

// The kinds of packets a flow has: who sends it, and whether it opens the connection.
std::vector<PacketFacts> packets_of(const FlowQuery& q, const NetworkView& view) {
    std::vector<PacketFacts> all;
    const auto add = [&](bool outgoing, bool fresh) {
        PacketFacts p;
        p.protocol = q.protocol;
        p.src = outgoing ? q.local : q.remote;
        p.dst = outgoing ? q.remote : q.local;
        p.outgoing = outgoing;
        p.fresh = fresh;
        p.ifindex = q.ifindex;
        if (const Interface* i = view.interface(q.ifindex)) {
            p.interface = i->name;
            const Interface* master = view.interface(i->master);
            p.bridged = i->kind == "bridge" || (master && master->kind == "bridge");
        }
        all.push_back(std::move(p));
    };
    if (q.role != FlowRole::passive) add(true, true);
    if (q.role != FlowRole::active) add(false, true);
    add(true, false);
    add(false, false);
    return all;
}

}  // namespace

struct KernelPolicy::State {
    std::mutex lock;
    netlink::Socket netfilter, xfrm;
    uint64_t key = 0;  // namespace
    std::atomic<uint64_t> generation{1};
    std::string notes;

    nft::Ruleset rules;
    bool rules_stale = true;
    std::vector<XfrmPolicy> policies;
    bool xfrm_default_blocks = false;
    bool policies_stale = true;

    Instant legacy_read = {};
    bool legacy_known = false;
    std::vector<iptables::Table> legacy;
    struct Seen {
        Instant when;
        std::string name;
    };
    std::map<int, Seen> tcx;         // by interface
    std::map<uint8_t, Seen> cgroup;  // by protocol

    void note(const char* what, int error);
    void drain();
    void read_rules();
    void read_policies();
    void refresh();
    void read_legacy(Instant now);
    Reason check_filters(const FlowQuery&, const NetworkView&, FilterEffect&);
    Reason check_xfrm(const FlowQuery&, std::string&);
    Reason check_cgroup(const FlowQuery&, Instant now, std::string&);
    Reason check_tc(const FlowQuery&, const NetworkView&, Instant now, std::string&);
    std::string tcx_on(int ifindex, Instant now);
};

void KernelPolicy::State::note(const char* what, int error) {
    const std::string text = std::string(what) + " (errno " + std::to_string(error) + ")";
    if (notes.find(text) != std::string::npos) return;
    notes += (notes.empty() ? "" : ", ") + text;
    vma_log(debug, "policy", "cannot read {}: taken as none", text);
}

void KernelPolicy::State::drain() {
    const auto stale_if_any = [](netlink::Socket& s, bool& stale) {
        if (!s.is_open()) return;
        Status read = s.receive([&stale](const netlink::Message& m) {
            if (m.type != NLMSG_ERROR && m.type != NLMSG_DONE) stale = true;
        });
        if (!read) vma_log(debug, "policy", "netlink receive failed: errno {}", read.error());
        if (s.take_overrun()) stale = true;
    };
    stale_if_any(netfilter, rules_stale);
    stale_if_any(xfrm, policies_stale);
}

void KernelPolicy::State::read_rules() {
    if (!rules_stale || !netfilter.is_open()) return;
    for (int attempt = 0; attempt < kReadAttempts; attempt++) {
        uint64_t events = 0;
        Result<nft::Ruleset> fresh = nft::read_ruleset(netfilter, &events);
        if (!fresh && fresh.error() != EBUSY && fresh.error() != ENOENT) {
            note("nft rules", fresh.error());
            if (fresh.error() == EPERM || fresh.error() == EINVAL) netfilter.close();
            rules_stale = false;
            return;
        }
        if (!fresh || events != 0) continue;
        rules = std::move(*fresh);
        rules_stale = false;
        generation++;
        return;
    }
    // Still changing: what was known stays in force, and the next look reads again.
    generation++;
}

void KernelPolicy::State::read_policies() {
    if (!policies_stale || !xfrm.is_open()) return;
    policies_stale = false;
    std::vector<XfrmPolicy> fresh;
    const auto event = [this](const netlink::Message&) { policies_stale = true; };
    netlink::Request request(XFRM_MSG_GETPOLICY, NLM_F_REQUEST | NLM_F_DUMP);
    const xfrm_userpolicy_id head{};
    request.head(&head, sizeof(head));
    Status done = xfrm.dump(
        request,
        [&](const netlink::Message& m) {
            if (const auto p = parse_policy(m)) fresh.push_back(*p);
        },
        event);
    if (!done) {
        note("xfrm policies", done.error());
        xfrm.close();
        return;
    }
    policies = std::move(fresh);
    xfrm_default_blocks = false;
    netlink::Request defaults(kXfrmGetDefault, NLM_F_REQUEST);
    const std::array<uint8_t, 3> none{};
    defaults.head(none.data(), none.size());
    done = xfrm.dump(
        defaults,
        [this](const netlink::Message& m) {
            const auto d = m.head<std::array<uint8_t, 3>>();  // in, forward, out
            xfrm_default_blocks = d[0] == kXfrmBlock || d[2] == kXfrmBlock;
        },
        event);
    if (!done && done.error() != EINVAL) note("xfrm default", done.error());  // EINVAL: before 5.15
    generation++;
}

void KernelPolicy::State::refresh() {
    drain();
    read_rules();
    read_policies();
}

void KernelPolicy::State::read_legacy(Instant now) {
    if (legacy_known && now - legacy_read < kRecheckEvery) return;
    legacy_known = true;
    legacy_read = now;
    const std::string names = read_proc_file("/proc/thread-self/net/ip_tables_names");
    if (names.empty()) {
        legacy.clear();
        return;
    }
    const int fd = sys::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return note("iptables", -fd);
    const Result<uint64_t> where = namespace_key(fd);
    if (where && *where == key) {  // a thread in another namespace learns nothing about ours
        Result<std::vector<iptables::Table>> tables = iptables::read_tables(fd, names);
        if (tables)
            legacy = std::move(*tables);
        else
            note("iptables", tables.error());
    }
    sys::close(fd);
}

Reason KernelPolicy::State::check_filters(const FlowQuery& q, const NetworkView& view,
                                          FilterEffect& effect) {
    if (rules.empty() && legacy.empty()) return Reason::none;
    FilterEffect marks;
    for (const PacketFacts& p : packets_of(q, view)) {
        effect = nft::evaluate(rules, p);
        if (effect.touched) return Reason::netfilter;
        if (effect.marks && !marks.marks) marks = effect;
        effect = iptables::evaluate(legacy, p);
        if (effect.touched) return Reason::netfilter;
        if (effect.marks && !marks.marks) marks = effect;
    }
    effect = marks;
    return marks.marks && view.has_mark_rules() ? Reason::mark_routing : Reason::none;
}

Reason KernelPolicy::State::check_xfrm(const FlowQuery& q, std::string& why) {
    if (xfrm_default_blocks) {
        why = "xfrm default policy blocks";
        return Reason::xfrm;
    }
    for (const XfrmPolicy& p : policies)
        if (can_match(p, q)) {
            why = "xfrm policy index " + std::to_string(p.index);
            return Reason::xfrm;
        }
    return Reason::none;
}

Reason KernelPolicy::State::check_cgroup(const FlowQuery& q, Instant now, std::string& why) {
    const auto [at, fresh] = cgroup.try_emplace(q.protocol);
    if (fresh || now - at->second.when >= kRecheckEvery) {
        at->second.when = now;
        Result<std::string> found = cgroup_program(q.protocol);
        if (!found && found.error() != ENOENT) note("cgroup programs", found.error());
        at->second.name = found ? *found : std::string{};
    }
    if (at->second.name.empty()) return Reason::none;
    why = "cgroup program at " + at->second.name;
    return Reason::cgroup_program;
}

std::string KernelPolicy::State::tcx_on(int ifindex, Instant now) {
    const auto [at, fresh] = tcx.try_emplace(ifindex);
    if (fresh || now - at->second.when >= kRecheckEvery) {
        at->second.when = now;
        Result<std::string> found = foreign_tcx_program(ifindex);
        if (!found && found.error() != EINVAL && found.error() != ENODEV)
            note("TCX programs", found.error());
        at->second.name = found ? *found : std::string{};
    }
    return at->second.name;
}

Reason KernelPolicy::State::check_tc(const FlowQuery& q, const NetworkView& view, Instant now,
                                     std::string& why) {
    for (const Interface& i : view.interfaces()) {
        if (q.ifindex != 0 ? i.index != q.ifindex : !i.up || i.loopback()) continue;
        if (!i.traffic_control.empty()) {
            why = "tc on " + i.name + ": " + i.traffic_control;
            return Reason::traffic_control;
        }
        const std::string program = tcx_on(i.index, now);
        if (!program.empty()) {
            why = "TCX program on " + i.name + ": " + program;
            return Reason::traffic_control;
        }
    }
    return Reason::none;
}

KernelPolicy::KernelPolicy(std::unique_ptr<State> state) : state_(std::move(state)) {}
KernelPolicy::~KernelPolicy() = default;

Result<std::unique_ptr<KernelPolicy>> KernelPolicy::open() {
    auto state = std::make_unique<State>();
    State& s = *state;
    static constexpr unsigned nft_groups[] = {NFNLGRP_NFTABLES};
    static constexpr unsigned xfrm_groups[] = {XFRMNLGRP_POLICY};
    const auto fatal = [](const Status& opened) {
        return opened.error() == EMFILE || opened.error() == ENFILE || opened.error() == ENOMEM;
    };
    if (Status opened = s.netfilter.open(NETLINK_NETFILTER, nft_groups); !opened) {
        if (fatal(opened)) return Errno{opened.error()};
        s.note("nft rules", opened.error());
    }
    if (Status opened = s.xfrm.open(NETLINK_XFRM, xfrm_groups); !opened) {
        if (fatal(opened)) return Errno{opened.error()};
        s.note("xfrm policies", opened.error());
    }
    const int any = s.netfilter.is_open() ? s.netfilter.fd() : s.xfrm.fd();
    if (any >= 0)
        if (const Result<uint64_t> key = namespace_key(any)) s.key = *key;
    s.refresh();
    return std::unique_ptr<KernelPolicy>(new KernelPolicy(std::move(state)));
}

int KernelPolicy::netfilter_fd() const { return state_->netfilter.fd(); }
int KernelPolicy::xfrm_fd() const { return state_->xfrm.fd(); }
uint64_t KernelPolicy::generation() const { return state_->generation; }

std::string KernelPolicy::notes() const {
    const std::lock_guard guard(state_->lock);
    return state_->notes;
}

void KernelPolicy::process() {
    const std::lock_guard guard(state_->lock);
    state_->refresh();
}

Reason KernelPolicy::check(const FlowQuery& q, const NetworkView& view, std::string* why) {
    const std::lock_guard guard(state_->lock);
    State& s = *state_;
    const Instant now = monotonic_now();
    s.refresh();
    s.read_legacy(now);
    std::string text;
    FilterEffect effect;
    const Reason filters = s.check_filters(q, view, effect);
    Reason reason = filters == Reason::netfilter ? filters : Reason::none;
    if (reason == Reason::none) reason = s.check_xfrm(q, text);
    if (reason == Reason::none) reason = s.check_cgroup(q, now, text);
    if (reason == Reason::none) reason = s.check_tc(q, view, now, text);
    if (reason == Reason::none) reason = filters;
    if (why) *why = text.empty() && reason != Reason::none ? effect.why : text;
    return reason;
}

}  // namespace vma
