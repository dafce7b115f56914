#include "engine/network_monitor.h"

#include <fcntl.h>
#include <linux/fib_rules.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/nexthop.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/own_fd.h"
#include "base/sys.h"
#include "engine/network_parse.h"

namespace vma {

namespace {

constexpr unsigned kGroups[] = {RTNLGRP_LINK,        RTNLGRP_NEIGH,      RTNLGRP_TC,
                                RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE,
                                RTNLGRP_IPV6_IFADDR, RTNLGRP_NEXTHOP};
constexpr int kSoNetnsCookie = 71;

// What has to be dumped again.
constexpr unsigned kLinks = 1, kAddresses = 2, kRoutes = 4, kRules = 8, kNexthops = 16, kTc = 32,
                   kNeighbors = 64, kAll = 127;
constexpr int kDumpRounds = 8;  // dumps that were overtaken by changes while they ran
constexpr int kDumpShare = 10;  // dumps take at most this part of the time ...
constexpr Duration kCheapDump = Duration::millis(2);  // ... unless they are cheaper than this
constexpr Duration kResolveEvery = Duration::millis(100), kFreshenEvery = Duration::seconds(1);
constexpr size_t kAskedLimit = 4096;
constexpr uint16_t kDiscardPort = 9;  // RFC 863

using NeighborKey = std::pair<int, IpAddr>;

struct Registry {
    std::mutex lock;
    std::map<uint64_t, std::weak_ptr<NetworkMonitor>> monitors;
};
// Never destroyed: the internal thread may outlive static destruction. Replaced, not emptied, in a forked child.
std::atomic<Registry*> g_registry{nullptr};

Registry& registry() {
    Registry* r = g_registry.load(std::memory_order_acquire);
    if (r) return *r;
    auto* fresh = new Registry;
    if (g_registry.compare_exchange_strong(r, fresh)) return *fresh;
    delete fresh;
    return *r;
}

unsigned stale_after(uint16_t type) {
    switch (type) {
        case RTM_NEWLINK:
        case RTM_DELLINK:
            return kLinks | kAddresses | kRoutes | kNexthops | kTc;
        case RTM_NEWADDR:
        case RTM_DELADDR:
            return kAddresses | kRoutes;
        case RTM_NEWROUTE:
        case RTM_DELROUTE:
            return kRoutes;
        case RTM_NEWRULE:
        case RTM_DELRULE:
            return kRules;
        case RTM_NEWNEXTHOP:
        case RTM_DELNEXTHOP:
            return kNexthops | kRoutes;
        case RTM_NEWQDISC:
        case RTM_DELQDISC:
        case RTM_NEWTFILTER:
        case RTM_DELTFILTER:
        case RTM_NEWCHAIN:
        case RTM_DELCHAIN:
            return kTc;
        default:
            return 0;
    }
}

}  // namespace

Result<uint64_t> namespace_key(int socket_fd) {
    uint64_t cookie = 0;
    socklen_t len = sizeof(cookie);
    const int err = sys::getsockopt(socket_fd, SOL_SOCKET, kSoNetnsCookie, &cookie, &len);
    if (err == 0) return cookie;
    if (err != -ENOPROTOOPT) return Errno{-err};
    std::array<char, 64> link{};  // "net:[4026531840]"
    const long n = sys::raw(SYS_readlinkat, AT_FDCWD, sys::ptr("/proc/thread-self/ns/net"),
                            sys::ptr(link.data()), long(link.size()));
    if (n < 6) return Errno{n < 0 ? int(-n) : EINVAL};
    if (std::from_chars(link.data() + 5, link.data() + n, cookie).ec != std::errc{})
        return Errno{EINVAL};
    return cookie;
}

struct NetworkMonitor::State {
    netlink::Socket socket;
    uint64_t key = 0;

    mutable std::mutex view_lock;
    std::shared_ptr<const NetworkView> view = std::make_shared<const NetworkView>();

    mutable std::mutex neighbor_lock;
    std::map<NeighborKey, Neighbor> neighbors;
    std::map<NeighborKey, Instant> asked;

    // Owned by the thread in process().
    unsigned stale = kAll;
    std::vector<Interface> links;
    std::vector<netlink::AddressEntry> addresses;
    std::map<int, std::string> traffic_control;
    std::vector<RouteEntry> routes;
    std::vector<PolicyRule> rules;
    std::vector<NextHopObject> nexthops;
    bool neighbors_changed = false;
    bool links_told = false;
    // Neighbour events seen while their dump runs: applied after it, since the dump may be older.
    bool hold_neighbors = false;
    std::vector<netlink::NeighborEntry> held;

    std::atomic<int64_t> due_ns{Instant::never().ns};
    Instant not_before{};
    std::atomic<uint64_t> overruns{0}, dumps{0};

    void event(const netlink::Message& m);
    void refused(const netlink::Message& m);
    void note_neighbor(const netlink::NeighborEntry&);
    template <class Each>
    Status dump(netlink::Request& request, Each&& each) {
        return socket.dump(request, each, [this](const netlink::Message& m) { event(m); });
    }
    template <class T, class Parse>
    Status dump_into(uint16_t type, uint8_t family, std::vector<T>& out, Parse parse);
    Status dump_links();
    Status dump_rules();
    Status dump_nexthops();
    Status dump_tc();
    Status dump_filters(int ifindex, const char* where, uint32_t parent);
    Status dump_neighbors();
    Status dump_stale();
    bool publish();
    void ask(int ifindex, const IpAddr& addr, Duration at_most_every);
};

void NetworkMonitor::State::event(const netlink::Message& m) {
    if (m.type == RTM_NEWNEIGH || m.type == RTM_DELNEIGH) {
        const auto entry = netlink::parse_neighbor(m);
        if (!entry) return;
        if (hold_neighbors)
            held.push_back(*entry);
        else
            note_neighbor(*entry);
        return;
    }
    if (m.type == NLMSG_ERROR && m.head<int32_t>() == -EPERM) refused(m);
    links_told |= m.type == RTM_NEWLINK;
    stale |= stale_after(m.type);
}

// The answer to ask() in a program that gave up CAP_NET_ADMIN (the request follows the error). A datagram makes the kernel
// resolve as well: empty, to the discard port, not to be forwarded by anyone.
void NetworkMonitor::State::refused(const netlink::Message& m) {
    const auto request = m.head<nlmsgerr>().msg;
    if (request.nlmsg_type != RTM_NEWNEIGH || m.body.size() < sizeof(nlmsgerr)) return;
    const auto entry = netlink::parse_neighbor(
        {request.nlmsg_type, request.nlmsg_flags, m.body.subspan(sizeof(nlmsgerr))});
    if (!entry || !entry->addr.is_v4()) return;
    OwnFd out;
    if (!out.adopt(sys::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))) return;
    const Result<uint64_t> here = namespace_key(out.fd());
    if (!here || *here != key) return;  // this thread has moved to another namespace
    const int one = 1;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(kDiscardPort);
    std::memcpy(&to.sin_addr, entry->addr.bytes.data() + 12, 4);
    if (sys::setsockopt(out.fd(), SOL_SOCKET, SO_BINDTOIFINDEX, &entry->ifindex, sizeof(int)) !=
            0 ||
        sys::setsockopt(out.fd(), IPPROTO_IP, IP_TTL, &one, sizeof(one)) != 0 ||
        sys::sendto(out.fd(), nullptr, 0, 0, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) <
            0)
        vma_log(debug, "net", "a neighbour could not be resolved without CAP_NET_ADMIN");
}

void NetworkMonitor::State::note_neighbor(const netlink::NeighborEntry& e) {
    const std::lock_guard guard(neighbor_lock);
    const NeighborKey at{e.ifindex, e.addr};
    if (e.neighbor.state == NeighborState::absent) {
        neighbors_changed |= neighbors.erase(at) != 0;
        return;
    }
    Neighbor& known = neighbors[at];
    neighbors_changed |= known != e.neighbor;
    known = e.neighbor;
}

template <class T, class Parse>
Status NetworkMonitor::State::dump_into(uint16_t type, uint8_t family, std::vector<T>& out,
                                        Parse parse) {
    netlink::Request request(type, NLM_F_REQUEST | NLM_F_DUMP);
    rtmsg head{};  // all family headers of these requests start with the family and are zero else
    head.rtm_family = family;
    request.head(&head, sizeof(head));
    std::vector<T> fresh;
    Status done = dump(request, [&](const netlink::Message& m) {
        if (auto entry = parse(m)) fresh.push_back(std::move(*entry));
    });
    if (done) out = std::move(fresh);
    return done;
}

Status NetworkMonitor::State::dump_links() {
    netlink::Request request(RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP);
    const ifinfomsg head{};
    request.head(&head, sizeof(head));
    request.put(IFLA_EXT_MASK, uint32_t(RTEXT_FILTER_SKIP_STATS));
    std::vector<Interface> fresh;
    Status done = dump(request, [&](const netlink::Message& m) {
        if (auto link = netlink::parse_link(m)) fresh.push_back(std::move(*link));
    });
    if (done) links = std::move(fresh);
    return done;
}

// Kernels without policy routing have no rules to dump: the three that every host has.
Status NetworkMonitor::State::dump_rules() {
    Status done = dump_into(RTM_GETRULE, AF_INET, rules, netlink::parse_rule);
    if (done || done.error() != EOPNOTSUPP) return done;
    rules.assign(3, {});
    rules[0].table = kTableLocal;
    rules[1].priority = 32766;
    rules[1].table = kTableMain;
    rules[2].priority = 32767;
    rules[2].table = kTableDefault;
    return {};
}

Status NetworkMonitor::State::dump_nexthops() {
    netlink::Request request(RTM_GETNEXTHOP, NLM_F_REQUEST | NLM_F_DUMP);
    const nhmsg head{};
    request.head(&head, sizeof(head));
    std::vector<NextHopObject> fresh;
    Status done = dump(request, [&](const netlink::Message& m) {
        if (auto object = netlink::parse_nexthop(m)) fresh.push_back(std::move(*object));
    });
    if (!done && done.error() != EOPNOTSUPP) return done;  // before Linux 5.3
    nexthops = std::move(fresh);
    return {};
}

Status NetworkMonitor::State::dump_filters(int ifindex, const char* where, uint32_t parent) {
    netlink::Request request(RTM_GETTFILTER, NLM_F_REQUEST | NLM_F_DUMP);
    tcmsg head{};
    head.tcm_ifindex = ifindex;
    head.tcm_parent = parent;
    request.head(&head, sizeof(head));
    Status done = dump(request, [&](const netlink::Message& m) {
        const std::string kind = netlink::parse_foreign_filter(m);
        if (kind.empty()) return;
        std::string& found = traffic_control[ifindex];
        if (found.empty()) found = std::string("clsact ") + where + " " + kind;
    });
    // The interface or its qdisc may have gone since; an event about that follows.
    if (!done && (done.error() == EINVAL || done.error() == ENODEV || done.error() == EOPNOTSUPP))
        return {};
    return done;
}

Status NetworkMonitor::State::dump_tc() {
    netlink::Request request(RTM_GETQDISC, NLM_F_REQUEST | NLM_F_DUMP);
    const tcmsg head{};
    request.head(&head, sizeof(head));
    request.put(TCA_DUMP_INVISIBLE, nullptr, 0);
    std::vector<netlink::QdiscEntry> qdiscs;
    Status done = dump(request, [&](const netlink::Message& m) {
        if (auto q = netlink::parse_qdisc(m)) qdiscs.push_back(std::move(*q));
    });
    if (!done && done.error() != EOPNOTSUPP) return done;  // a kernel without traffic control
    traffic_control.clear();
    for (const netlink::QdiscEntry& q : qdiscs) {
        if (!q.harmless && traffic_control[q.ifindex].empty()) traffic_control[q.ifindex] = q.kind;
        if (q.has_ingress)
            if (Status ok = dump_filters(q.ifindex, "ingress", 0xfffffff2); !ok) return ok;
        if (q.has_egress)
            if (Status ok = dump_filters(q.ifindex, "egress", 0xfffffff3); !ok) return ok;
    }
    return {};
}

Status NetworkMonitor::State::dump_neighbors() {
    netlink::Request request(RTM_GETNEIGH, NLM_F_REQUEST | NLM_F_DUMP);
    const ndmsg head{};
    request.head(&head, sizeof(head));
    std::map<NeighborKey, Neighbor> fresh;
    hold_neighbors = true;
    Status done = dump(request, [&](const netlink::Message& m) {
        const auto e = netlink::parse_neighbor(m);
        if (e && e->neighbor.state != NeighborState::absent)
            fresh[{e->ifindex, e->addr}] = e->neighbor;
    });
    hold_neighbors = false;
    if (done) {
        const std::lock_guard guard(neighbor_lock);
        neighbors_changed |= fresh != neighbors;
        neighbors = std::move(fresh);
    }
    for (const netlink::NeighborEntry& e : std::exchange(held, {})) note_neighbor(e);
    return done;
}

// Dumps what is stale. What is overtaken by a change, or interrupted, stays stale.
Status NetworkMonitor::State::dump_stale() {
    Status failed;
    const auto part = [&](unsigned bit, auto&& run) {
        if ((stale & bit) == 0) return;
        stale &= ~bit;
        Status done = run();
        if (done) return;
        stale |= bit;
        if (done.error() != EBUSY) failed = done;
    };
    dumps++;
    part(kLinks, [this] { return dump_links(); });
    part(kAddresses,
         [this] { return dump_into(RTM_GETADDR, AF_UNSPEC, addresses, netlink::parse_address); });
    part(kNexthops, [this] { return dump_nexthops(); });
    part(kRoutes,
         [this] { return dump_into(RTM_GETROUTE, AF_INET, routes, netlink::parse_route); });
    part(kRules, [this] { return dump_rules(); });
    part(kTc, [this] { return dump_tc(); });
    part(kNeighbors, [this] { return dump_neighbors(); });
    if (socket.take_overrun()) {
        overruns++;
        stale = kAll;
    }
    return failed;
}

// True when the new view differs from the one that readers have.
bool NetworkMonitor::State::publish() {
    NetworkData data{links, routes, rules, nexthops};
    std::map<int, Interface*> by_index;
    for (Interface& i : data.interfaces) {
        by_index[i.index] = &i;
        const auto tc = traffic_control.find(i.index);
        if (tc != traffic_control.end()) i.traffic_control = tc->second;
    }
    for (const netlink::AddressEntry& a : addresses) {
        const auto at = by_index.find(a.ifindex);
        if (at != by_index.end()) at->second->addresses.push_back(a.address);
    }
    auto fresh = std::make_shared<const NetworkView>(std::move(data));
    const std::lock_guard guard(view_lock);
    if (*fresh == *view) return false;
    view = std::move(fresh);
    return true;
}

void NetworkMonitor::State::ask(int ifindex, const IpAddr& addr, Duration at_most_every) {
    const Instant now = monotonic_now();
    {
        const std::lock_guard guard(neighbor_lock);
        if (asked.size() >= kAskedLimit)
            std::erase_if(asked, [&](const auto& a) { return now - a.second > kFreshenEvery; });
        if (asked.size() >= kAskedLimit) return;
        const auto [at, fresh] = asked.try_emplace({ifindex, addr}, now);
        if (!fresh && now - at->second < at_most_every) return;
        at->second = now;
    }
    // NTF_USE: as if the kernel itself had a packet for this neighbour.
    netlink::Request request(RTM_NEWNEIGH, NLM_F_REQUEST | NLM_F_CREATE);
    ndmsg head{};
    head.ndm_family = addr.is_v4() ? AF_INET : AF_INET6;
    head.ndm_ifindex = ifindex;
    head.ndm_flags = NTF_USE;
    request.head(&head, sizeof(head));
    request.put(NDA_DST, addr.bytes.data() + (addr.is_v4() ? 12 : 0), addr.is_v4() ? 4 : 16);
    if (Status sent = socket.post(request); !sent)
        vma_log(debug, "net", "neighbour request failed: errno {}", sent.error());
}

NetworkMonitor::NetworkMonitor(std::unique_ptr<State> state) : state_(std::move(state)) {}

NetworkMonitor::~NetworkMonitor() {
    Registry& r = registry();
    const std::lock_guard guard(r.lock);
    const auto at = r.monitors.find(state_->key);
    if (at != r.monitors.end() && at->second.expired()) r.monitors.erase(at);
}

Result<std::shared_ptr<NetworkMonitor>> NetworkMonitor::of_this_namespace() {
    auto state = std::make_unique<State>();
    if (Status opened = state->socket.open(NETLINK_ROUTE, kGroups); !opened)
        return Errno{opened.error()};
    const Result<uint64_t> key = namespace_key(state->socket.fd());
    if (!key) return Errno{key.error()};
    state->key = *key;
    if (auto existing = find(*key)) return existing;
    auto monitor = std::shared_ptr<NetworkMonitor>(new NetworkMonitor(std::move(state)));
    State& s = *monitor->state_;
    Status dumped;
    for (int round = 0; round < kDumpRounds && s.stale != 0 && dumped; round++)
        dumped = s.dump_stale();
    if (!dumped) return Errno{dumped.error()};
    s.publish();
    if (s.stale != 0) s.due_ns = monotonic_now().ns;
    Registry& r = registry();
    const std::lock_guard guard(r.lock);
    std::weak_ptr<NetworkMonitor>& slot = r.monitors[*key];
    if (auto other = slot.lock()) return other;  // opened by another thread meanwhile
    slot = monitor;
    return monitor;
}

std::shared_ptr<NetworkMonitor> NetworkMonitor::find(uint64_t key) {
    Registry& r = registry();
    const std::lock_guard guard(r.lock);
    const auto at = r.monitors.find(key);
    return at == r.monitors.end() ? nullptr : at->second.lock();
}

void NetworkMonitor::forget_in_child() { g_registry.store(nullptr, std::memory_order_release); }

uint64_t NetworkMonitor::key() const { return state_->key; }
int NetworkMonitor::fd() const { return state_->socket.fd(); }
Instant NetworkMonitor::due() const { return {state_->due_ns.load(std::memory_order_relaxed)}; }
uint64_t NetworkMonitor::overruns() const { return state_->overruns; }
uint64_t NetworkMonitor::dumps() const { return state_->dumps; }

void NetworkMonitor::process() {
    State& s = *state_;
    Status read = s.socket.receive([&s](const netlink::Message& m) { s.event(m); });
    if (!read) vma_log(debug, "net", "netlink receive failed: errno {}", read.error());
    if (s.socket.take_overrun()) {
        s.overruns++;
        s.stale = kAll;
    }
    if (std::exchange(s.links_told, false)) link_news_.fetch_add(1, std::memory_order_acq_rel);
    if (s.stale != 0) {
        const Instant start = monotonic_now();
        if (start < s.not_before) {
            s.due_ns = s.not_before.ns;
        } else {
            Status dumped;
            for (int round = 0; round < kDumpRounds && s.stale != 0 && dumped; round++)
                dumped = s.dump_stale();
            const Instant end = monotonic_now();
            const Duration cost = end - start;
            if (cost > kCheapDump) s.not_before = end + cost * kDumpShare;
            if (s.publish()) generation_.fetch_add(1, std::memory_order_acq_rel);
            // Whatever is still stale is tried again; after a failure not at once.
            if (!dumped) s.not_before = std::max(s.not_before, end + Duration::seconds(1));
            s.due_ns = s.stale == 0 ? Instant::never().ns : std::max(s.not_before, end).ns;
        }
    }
    if (std::exchange(s.neighbors_changed, false))
        neighbor_generation_.fetch_add(1, std::memory_order_acq_rel);
}

std::shared_ptr<const NetworkView> NetworkMonitor::view() const {
    const std::lock_guard guard(state_->view_lock);
    return state_->view;
}

Neighbor NetworkMonitor::neighbor(int ifindex, const IpAddr& addr) const {
    const std::lock_guard guard(state_->neighbor_lock);
    const auto at = state_->neighbors.find({ifindex, addr});
    return at == state_->neighbors.end() ? Neighbor{} : at->second;
}

std::vector<NetworkMonitor::KnownNeighbor> NetworkMonitor::neighbors() const {
    const std::lock_guard guard(state_->neighbor_lock);
    std::vector<KnownNeighbor> out;
    for (const auto& [key, neighbor] : state_->neighbors)
        out.push_back({key.first, key.second, neighbor});
    return out;
}

void NetworkMonitor::resolve(int ifindex, const IpAddr& addr) {
    state_->ask(ifindex, addr, kResolveEvery);
}

void NetworkMonitor::keep_fresh(int ifindex, const IpAddr& addr) {
    if (neighbor(ifindex, addr).state != NeighborState::stale) return;
    state_->ask(ifindex, addr, kFreshenEvery);
}

}  // namespace vma
