#include "stack/route.h"

#include <algorithm>

namespace vma {

namespace {

constexpr uint8_t kDscpMask = 0xfc, kLegacyTosMask = 0x1c;

uint32_t prefix_mask(unsigned prefix) { return prefix == 0 ? 0 : ~uint32_t(0) << (32 - prefix); }
bool is_multicast(uint32_t a) { return a >> 28 == 0xe; }
bool is_local_multicast(uint32_t a) { return a >> 8 == 0xe00000; }
bool is_loopback(uint32_t a) { return a >> 24 == 127; }
constexpr uint32_t kLimitedBroadcast = 0xffffffff;

int route_type_error(RouteType t) {
    switch (t) {
        case RouteType::blackhole:
            return EINVAL;
        case RouteType::unreachable:
            return EHOSTUNREACH;
        case RouteType::prohibit:
            return EACCES;
        case RouteType::throw_:
            return EAGAIN;
        default:
            return 0;
    }
}

int rule_error(RuleAction a) {
    switch (a) {
        case RuleAction::unreachable:
            return ENETUNREACH;
        case RuleAction::prohibit:
            return EACCES;
        default:
            return EINVAL;
    }
}

bool plain_rule(const PolicyRule& r, uint32_t priority, uint32_t table) {
    PolicyRule want;
    want.priority = priority;
    want.table = table;
    return r == want;
}

bool default_rules(const std::vector<PolicyRule>& rules) {
    return rules.size() == 3 && plain_rule(rules[0], 0, kTableLocal) &&
           plain_rule(rules[1], 32766, kTableMain) && plain_rule(rules[2], 32767, kTableDefault);
}

bool port_matches(uint16_t low, uint16_t high, uint16_t mask, uint16_t port) {
    if (high == 0) return true;
    if (mask != 0xffff) return ((low ^ port) & mask) == 0;
    return low <= port && port <= high;
}

uint32_t gateway_v4(const NextHop& hop) { return hop.gateway.is_v4() ? hop.gateway.v4_host() : 0; }

}  // namespace

// The flow as the rules and tables see it: host order, selectors already masked.
struct NetworkView::Key {
    uint32_t dst, src;
    uint8_t dscp;  // in tos position
    uint8_t scope;
    uint8_t protocol;
    uint16_t sport, dport;
    uint32_t mark, uid;
    int oif;
};

NetworkView::NetworkView(NetworkData data) : data_(std::move(data)) {
    std::sort(data_.interfaces.begin(), data_.interfaces.end(),
              [](const Interface& a, const Interface& b) { return a.index < b.index; });
    for (const Interface& i : data_.interfaces)
        if (i.loopback()) loopback_ = i.index;
    std::stable_sort(data_.routes.begin(), data_.routes.end(),
                     [](const RouteEntry& a, const RouteEntry& b) {
                         if (a.table != b.table) return a.table < b.table;
                         if (a.prefix != b.prefix) return a.prefix > b.prefix;
                         return a.dst < b.dst;
                     });
    for (uint32_t i = 0; i < data_.routes.size(); i++) {
        const RouteEntry& r = data_.routes[i];
        if (tables_.empty() || tables_.back().id != r.table) tables_.push_back({.id = r.table});
        Table& t = tables_.back();
        if (t.end[r.prefix] == 0) t.begin[r.prefix] = i;
        t.end[r.prefix] = i + 1;
    }
    std::sort(data_.nexthops.begin(), data_.nexthops.end(),
              [](const NextHopObject& a, const NextHopObject& b) { return a.id < b.id; });
    for (const NextHopObject& object : data_.nexthops) {
        auto& hops = object_hops_.emplace_back();
        if (object.group.empty()) hops.push_back(object.hop);
        for (const NextHopObject::Leg& leg : object.group) {
            const NextHopObject* member = nexthop(leg.id);
            if (member == nullptr) continue;
            hops.push_back(member->hop);
            hops.back().weight = leg.weight;
            // A blackhole can only be the single leg of a group; the group then behaves like it.
            if (member->blackhole) hops.back().oif = 0;
        }
    }
    route_object_.resize(data_.routes.size());
    for (size_t i = 0; i < data_.routes.size(); i++) {
        const NextHopObject* object = nexthop(data_.routes[i].nexthop_id);
        if (object) route_object_[i] = uint32_t(object - data_.nexthops.data()) + 1;
    }
    for (PolicyRule& r : data_.rules) {
        const auto index_of = [this](const std::string& name) {
            if (name.empty()) return 0;
            const Interface* found = interface(name);
            return found ? found->index : -1;
        };
        r.iif_index = index_of(r.iif);
        r.oif_index = index_of(r.oif);
        if (r.mark_mask != 0) mark_rules_ = true;
    }
    merged_local_ = default_rules(data_.rules);
}

const Interface* NetworkView::interface(int index) const {
    const auto at = std::lower_bound(data_.interfaces.begin(), data_.interfaces.end(), index,
                                     [](const Interface& i, int want) { return i.index < want; });
    return at != data_.interfaces.end() && at->index == index ? &*at : nullptr;
}

const Interface* NetworkView::interface(std::string_view name) const {
    for (const Interface& i : data_.interfaces)
        if (i.name == name) return &i;
    return nullptr;
}

const NetworkView::Table* NetworkView::table(uint32_t id) const {
    const auto at = std::lower_bound(tables_.begin(), tables_.end(), id,
                                     [](const Table& t, uint32_t want) { return t.id < want; });
    return at != tables_.end() && at->id == id ? &*at : nullptr;
}

const NextHopObject* NetworkView::nexthop(uint32_t id) const {
    if (id == 0) return nullptr;
    const auto at =
        std::lower_bound(data_.nexthops.begin(), data_.nexthops.end(), id,
                         [](const NextHopObject& n, uint32_t want) { return n.id < want; });
    return at != data_.nexthops.end() && at->id == id ? &*at : nullptr;
}

const std::vector<NextHop>& NetworkView::hops(const RouteEntry& entry) const {
    const uint32_t object = route_object_[size_t(&entry - data_.routes.data())];
    return object ? object_hops_[object - 1] : entry.hops;
}

bool NetworkView::alive(const NextHop& hop) const {
    if (hop.dead) return false;
    if (!hop.linkdown) return true;
    const Interface* out = interface(hop.oif);
    return out == nullptr || !out->ignore_linkdown_routes;
}

bool NetworkView::rule_matches(const PolicyRule& r, const Key& k) const {
    const auto selected = [&] {
        // What we send enters the lookup as if it came in by the loopback interface.
        if (r.iif_index != 0 && r.iif_index != loopback_) return false;
        if (r.oif_index != 0 && r.oif_index != k.oif) return false;
        if (((r.mark ^ k.mark) & r.mark_mask) != 0) return false;
        if (r.needs_l3mdev || r.needs_tunnel) return false;
        if (k.uid < r.uid_low || k.uid > r.uid_high) return false;
        if (((r.dst ^ k.dst) & prefix_mask(r.dst_prefix)) != 0) return false;
        if (((r.src ^ k.src) & prefix_mask(r.src_prefix)) != 0) return false;
        if (((r.dscp ^ k.dscp) & r.dscp_mask) != 0) return false;
        if (r.tos != 0 && r.tos != (k.dscp & kLegacyTosMask)) return false;
        if (r.protocol != 0 && r.protocol != k.protocol) return false;
        return port_matches(r.sport_low, r.sport_high, r.sport_mask, k.sport) &&
               port_matches(r.dport_low, r.dport_high, r.dport_mask, k.dport);
    };
    return selected() != r.invert;
}

NetworkView::Found NetworkView::try_entry(const RouteEntry& entry, const Key& k, Match& out,
                                          int& error) const {
    if (entry.tos != 0 && entry.tos != (k.dscp & kLegacyTosMask)) return Found::no;
    if (entry.scope < k.scope) return Found::no;
    error = route_type_error(entry.type);
    if (error != 0) return Found::error;
    const NextHopObject* object = nexthop(entry.nexthop_id);
    if (object && object->blackhole) {
        error = EINVAL;
        return Found::error;
    }
    const std::vector<NextHop>& legs = hops(entry);
    for (const NextHop& hop : legs) {
        if (object && hop.oif == 0) {
            error = EINVAL;
            return Found::error;
        }
        if (!alive(hop) || (k.oif != 0 && k.oif != hop.oif)) continue;
        out = {&entry, &hop, legs.size()};
        return Found::yes;
    }
    return object ? Found::leave : Found::no;
}

NetworkView::Found NetworkView::look_in_tables(const uint32_t* ids, size_t n, const Key& k,
                                               Match& out, int& error) const {
    const Table* tables[2] = {};
    for (size_t i = 0; i < n; i++) tables[i] = table(ids[i]);
    // A route whose nexthop object has no usable leg makes the kernel leave the node of the trie, which holds the routes
    // of all prefix lengths that start at the same address.
    bool left = false;
    uint32_t left_at = 0;
    for (int prefix = 32; prefix >= 0; prefix--) {
        const uint32_t want = k.dst & prefix_mask(unsigned(prefix));
        if (left && want == left_at) continue;
        for (const Table* t : tables) {
            if (t == nullptr || t->end[size_t(prefix)] == 0 || (left && want == left_at)) continue;
            const auto begin = data_.routes.begin() + t->begin[size_t(prefix)];
            const auto end = data_.routes.begin() + t->end[size_t(prefix)];
            auto at = std::lower_bound(
                begin, end, want, [](const RouteEntry& r, uint32_t dst) { return r.dst < dst; });
            for (; at != end && at->dst == want; ++at) {
                const Found found = try_entry(*at, k, out, error);
                if (found == Found::leave) {
                    left = true;
                    left_at = want;
                    break;
                }
                if (found != Found::no) return found;
            }
        }
    }
    return Found::no;
}

NetworkView::Found NetworkView::lookup(const Key& k, Match& out, int& error) const {
    error = ENETUNREACH;
    int err = 0;
    if (merged_local_) {
        static constexpr uint32_t local_main[] = {kTableLocal, kTableMain};
        static constexpr uint32_t last[] = {kTableDefault};
        Found found = look_in_tables(local_main, 2, k, out, err);
        if (found == Found::no || (found == Found::error && err == EAGAIN))
            found = look_in_tables(last, 1, k, out, err);
        if (found == Found::error && err != EAGAIN) error = err;
        return found;
    }
    for (size_t i = 0; i < data_.rules.size(); i++) {
        const PolicyRule* r = &data_.rules[i];
        if (!rule_matches(*r, k) || r->action == RuleAction::nop) continue;
        if (r->action == RuleAction::go_to) {
            size_t to = i + 1;
            while (to < data_.rules.size() && data_.rules[to].priority != r->target) to++;
            if (to < data_.rules.size()) i = to - 1;
            continue;
        }
        if (r->action != RuleAction::table) {
            error = rule_error(r->action);
            return Found::error;
        }
        const Found found = look_in_tables(&r->table, 1, k, out, err);
        if (found == Found::error && err != EAGAIN) {
            error = err;
            return found;
        }
        if (found != Found::yes) continue;
        if (int(out.entry->prefix) <= r->suppress_prefix) continue;
        const Interface* dev = interface(out.hop->oif);
        if (r->suppress_group >= 0 && dev && dev->group == uint32_t(r->suppress_group)) continue;
        return found;
    }
    out = {};
    return Found::no;
}

bool NetworkView::is_local(const IpAddr& a) const {
    if (!a.is_v4()) return interface_of_local(a) != nullptr || a.is_loopback();
    Match m;
    int error = 0;
    Key k{};
    k.dst = a.v4_host();
    return look_in_tables(&kTableLocal, 1, k, m, error) == Found::yes &&
           m.entry->type == RouteType::local;
}

bool NetworkView::is_broadcast(const IpAddr& a) const {
    if (!a.is_v4()) return false;
    if (a.is_limited_broadcast()) return true;
    Match m;
    int error = 0;
    Key k{};
    k.dst = a.v4_host();
    return look_in_tables(&kTableLocal, 1, k, m, error) == Found::yes &&
           m.entry->type == RouteType::broadcast;
}

const Interface* NetworkView::interface_of_local(const IpAddr& a) const {
    for (const Interface& i : data_.interfaces)
        for (const InterfaceAddress& own : i.addresses)
            if (own.addr == a) return &i;
    return nullptr;
}

uint32_t NetworkView::source_on(const Interface* dev, uint32_t dst, uint8_t scope) const {
    if (dev) {
        const uint8_t narrowest = dev->route_localnet ? kScopeLink : kScopeHost;
        uint32_t first = 0;
        for (const InterfaceAddress& a : dev->addresses) {
            if (!a.addr.is_v4() || a.secondary || std::min(a.scope, narrowest) > scope) continue;
            const uint32_t own = a.addr.v4_host();
            if (dst == 0 || ((a.peer.v4_host() ^ dst) & prefix_mask(a.prefix)) == 0) return own;
            if (first == 0) first = own;
        }
        if (first != 0) return first;
    }
    // No address on this interface: any other of the host that may be shown outside it.
    for (const Interface& other : data_.interfaces) {
        const Interface* master = interface(other.master);
        if (master && master->kind == "vrf") continue;
        for (const InterfaceAddress& a : other.addresses)
            if (a.addr.is_v4() && !a.secondary && a.scope != kScopeLink && a.scope <= scope)
                return a.addr.v4_host();
    }
    return 0;
}

IpAddr NetworkView::select_source(int index, const IpAddr& dst, uint8_t scope) const {
    return IpAddr::v4(source_on(interface(index), dst.is_v4() ? dst.v4_host() : 0, scope));
}

uint32_t NetworkView::source_of(const Match& m) const {
    if (m.entry->prefsrc != 0) return m.entry->prefsrc;
    return source_on(interface(m.hop->oif), gateway_v4(*m.hop), m.entry->scope);
}

void NetworkView::pick_leg(const RouteQuery& q, Match& m) const {
    if (m.legs < 2 || q.oif != 0) return;
    const std::vector<NextHop>& legs = hops(*m.entry);
    uint64_t total = 0;
    for (const NextHop& hop : legs)
        if (alive(hop)) total += hop.weight;
    const uint64_t point = total * (q.hash & 0x7fffffff) >> 31;
    uint64_t sum = 0;
    for (const NextHop& hop : legs) {
        if (!alive(hop)) continue;
        sum += hop.weight;
        if (point < sum) {
            m.hop = &hop;
            break;
        }
    }
    if (q.src.is_any()) return;
    // A bound source goes out where it belongs, if one of the legs is that place (the kernel does so from 6.16 on).
    const auto source = [&](const NextHop& hop) {
        return source_on(interface(hop.oif), gateway_v4(hop), m.entry->scope);
    };
    if (source(*m.hop) == q.src.v4_host()) return;
    for (const NextHop& hop : legs)
        if (alive(hop) && source(hop) == q.src.v4_host()) {
            m.hop = &hop;
            return;
        }
}

int NetworkView::any_source_interface(uint32_t src) const {
    const IpAddr a = IpAddr::v4(src);
    if (const Interface* own = interface_of_local(a)) return own->index;
    Match m;
    int error = 0;
    Key k{};
    k.dst = src;
    if (look_in_tables(&kTableLocal, 1, k, m, error) != Found::yes) return 0;
    return m.entry->type == RouteType::local ? m.hop->oif : 0;
}

Result<Route> NetworkView::finish(const Key& k, const Interface& out, const Match& m,
                                  RouteType type) const {
    if (is_loopback(k.src) && !out.loopback() && !out.route_localnet) return Errno{EINVAL};
    const RouteEntry* entry = m.entry;
    if (k.dst == kLimitedBroadcast)
        type = RouteType::broadcast;
    else if (is_multicast(k.dst))
        type = RouteType::multicast;
    // Limited broadcast uses a unicast route only to find its interface.
    if (type == RouteType::broadcast && entry && entry->type != type) entry = nullptr;
    // A multicast packet never takes the gateway of a default route.
    if (type == RouteType::multicast && entry && entry->prefix < 4) entry = nullptr;
    Route r;
    r.type = type;
    r.oif = r.fib_oif = out.index;
    r.next_hop = IpAddr::v4(k.dst);
    r.source = IpAddr::v4(k.src);
    r.mtu = std::min<uint32_t>(out.mtu, 65535);
    r.multipath = m.legs > 1;
    if (m.entry) r.table = m.entry->table;
    if (entry == nullptr) return r;
    // A gateway that is an address of this host means: directly.
    if (m.hop && !m.hop->gateway.is_any() &&
        (m.hop->onlink || any_source_interface(gateway_v4(*m.hop)) == 0) &&
        type != RouteType::local && type != RouteType::broadcast) {
        r.next_hop = m.hop->gateway;
        r.gatewayed = true;
    }
    if (entry->mtu != 0) r.mtu = std::min(r.mtu, entry->mtu);
    r.mtu_locked = entry->mtu_locked;
    return r;
}

Result<Route> NetworkView::finish_local(const RouteQuery& q, Key& k, const Match& m) const {
    const Interface* lo = interface(loopback_);
    if (lo == nullptr) return Errno{ENODEV};
    if (k.src == 0) k.src = m.entry && m.entry->prefsrc ? m.entry->prefsrc : k.dst;
    Result<Route> r = finish(k, *lo, m, RouteType::local);
    if (!r) return r;
    r->fib_oif = m.hop ? m.hop->oif : loopback_;
    if (const Interface* own = interface_of_local(q.dst)) r->fib_oif = own->index;
    return r;
}

Result<Route> NetworkView::route(const RouteQuery& q) const {
    if (!q.dst.is_v4() || !q.src.is_v4()) return Errno{EOPNOTSUPP};
    Key k{.dst = q.dst.v4_host(),
          .src = q.src.v4_host(),
          .dscp = uint8_t(q.tos & kDscpMask),
          .scope = q.on_link_only ? kScopeLink : kScopeUniverse,
          .protocol = q.protocol,
          .sport = q.sport,
          .dport = q.dport,
          .mark = q.mark,
          .uid = q.uid,
          .oif = q.oif};
    const Interface* out = nullptr;
    const bool group_or_all = is_multicast(k.dst) || k.dst == kLimitedBroadcast;
    if (k.src != 0) {
        if (is_multicast(k.src) || k.src == kLimitedBroadcast) return Errno{EINVAL};
        if (k.oif == 0 && group_or_all) {
            // The interface of the bound address takes the place of IP_MULTICAST_IF; no table is asked.
            out = interface(any_source_interface(k.src));
            if (out == nullptr) return Errno{ENETUNREACH};
            return finish(k, *out, {}, RouteType::unicast);
        }
        if (any_source_interface(k.src) == 0) return Errno{ENETUNREACH};
    }
    if (k.oif != 0) {
        out = interface(k.oif);
        if (out == nullptr) return Errno{ENODEV};
        const Interface* master = interface(out->master);
        if (out->kind == "vrf" || (master && master->kind == "vrf")) return Errno{EOPNOTSUPP};
        if (!out->up) return Errno{ENETUNREACH};
        if (is_local_multicast(k.dst) || k.dst == kLimitedBroadcast) {
            if (k.src == 0) k.src = source_on(out, 0, kScopeLink);
            return finish(k, *out, {}, RouteType::unicast);
        }
        if (k.src == 0 && is_multicast(k.dst)) k.src = source_on(out, 0, k.scope);
        if (k.src == 0 && k.dst == 0) k.src = source_on(out, 0, kScopeHost);
    }
    if (k.dst == 0) {
        k.dst = k.src != 0 ? k.src : 0x7f000001;
        if (k.src == 0) k.src = k.dst;
        return finish_local(q, k, {});
    }
    Match m;
    int error = 0;
    if (lookup(k, m, error) != Found::yes) {
        if (out == nullptr) return Errno{error};
        // An interface was named and no route leads through it: the kernel takes the destination as on link.
        if (k.src == 0) k.src = source_on(out, 0, kScopeLink);
        return finish(k, *out, {}, RouteType::unicast);
    }
    if (m.entry->type == RouteType::local) return finish_local(q, k, m);
    pick_leg(q, m);
    if (k.src == 0) k.src = source_of(m);
    out = interface(m.hop->oif);
    if (out == nullptr) return Errno{ENETUNREACH};
    return finish(k, *out, m, m.entry->type);
}

}  // namespace vma
