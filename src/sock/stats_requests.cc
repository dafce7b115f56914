#include "sock/stats_requests.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "engine/frame_log.h"
#include "engine/runtime.h"
#include "sock/epoll.h"
#include "sock/tcp_socket.h"
#include "sock/udp_socket.h"
#include "sock/walk.h"
#include "stats/capture.h"
#include "stats/publisher.h"

namespace vma::sock {
namespace {

template <size_t N>
void copy_name(char (&out)[N], const std::string& text) {
    std::strncpy(out, text.c_str(), N - 1);
}

void list_options() {
    stats::Listing<stats::OptionRow> list;
    const Options& options = Runtime::options();
    for (const OptionRow& option : option_rows()) {
        stats::OptionRow row;
        row.origin = unsigned(options.origin(option.id));
        copy_name(row.name, option.name);
        copy_name(row.value, option_value_text(options, option.id));
        list.add(row);
    }
}

void list_routes() {
    stats::Listing<stats::RouteRow> list;
    Runtime::for_each_space([&](NetSpace& space) {
        const auto view = space.monitor().view();
        for (const RouteEntry& route : view->data().routes) {
            stats::RouteRow row;
            row.table = route.table;
            row.type = unsigned(route.type);
            row.destination = stats::to_address({IpAddr::v4(route.dst), 0});
            row.prefix = route.prefix;
            row.metric = route.metric;
            row.mtu = route.mtu;
            if (route.prefsrc) row.source = stats::to_address({IpAddr::v4(route.prefsrc), 0});
            if (route.hops.empty()) list.add(row);
            for (const NextHop& hop : route.hops) {
                row.gateway = stats::to_address({hop.gateway, 0});
                row.ifindex = uint32_t(hop.oif);
                if (const Interface* interface = view->interface(hop.oif))
                    copy_name(row.interface, interface->name);
                list.add(row);
            }
        }
    });
}

const char* state_text(NeighborState state) {
    switch (state) {
        case NeighborState::absent:
            return "NONE";
        case NeighborState::incomplete:
            return "INCOMPLETE";
        case NeighborState::usable:
            return "REACHABLE";
        case NeighborState::stale:
            return "STALE";
        case NeighborState::failed:
            break;
    }
    return "FAILED";
}

void list_neighbors() {
    stats::Listing<stats::NeighborRow> list;
    Runtime::for_each_space([&](NetSpace& space) {
        const auto view = space.monitor().view();
        for (const NetworkMonitor::KnownNeighbor& known : space.monitor().neighbors()) {
            stats::NeighborRow row;
            row.address = stats::to_address({known.addr, 0});
            row.ifindex = uint32_t(known.ifindex);
            row.usable = known.neighbor.sendable();
            std::memcpy(row.mac, known.neighbor.mac.bytes.data(), known.neighbor.mac.bytes.size());
            if (const Interface* interface = view->interface(known.ifindex))
                copy_name(row.interface, interface->name);
            copy_name(row.state, state_text(known.neighbor.state));
            list.add(row);
        }
    });
}

// [lease]
stats::FlowRow flow_of(const TcpTarget& target) {
    stats::FlowRow row;
    const auto set = [&](stats::FlowKind kind, tcp::State state, const Endpoint& local,
                         const Endpoint& remote) {
        row.kind = kind;
        row.tcp_state = unsigned(state);
        row.local = stats::to_address(local);
        row.remote = stats::to_address(remote);
    };
    switch (target.kind) {
        case TcpTarget::Kind::connection: {
            const auto& c = static_cast<const TcpConnection&>(target);
            set(stats::FlowKind::connection, c.tcb.state, c.tuple.local, c.tuple.remote);
            row.orphan = c.owner == nullptr && c.listener == nullptr;
            break;
        }
        case TcpTarget::Kind::listener: {
            const auto& l = static_cast<const TcpListener&>(target);
            set(stats::FlowKind::listener, tcp::State::LISTEN, l.tuple.local, l.tuple.remote);
            break;
        }
        case TcpTarget::Kind::half_open: {
            const auto& h = static_cast<const TcpHalfOpen&>(target);
            set(stats::FlowKind::half_open, tcp::State::SYN_RECEIVED, h.record.local,
                h.record.remote);
            break;
        }
        case TcpTarget::Kind::time_wait: {
            const auto& w = static_cast<const TcpRemains&>(target);
            set(stats::FlowKind::time_wait, tcp::State::TIME_WAIT, w.record.local, w.record.remote);
            break;
        }
    }
    return row;
}

void list_flows() {
    stats::Listing<stats::FlowRow> list;
    const auto shards = Runtime::shards();
    for (uint32_t i = 0; i < shards.size(); i++) {
        Shard& shard = *shards[i];
        LeaseGuard guard(shard.lease());
        shard.tcp().table().for_each([&](const TcpTarget& target) {
            stats::FlowRow row = flow_of(target);
            row.ring = i;
            list.add(row);
        });
        shard.udp().demux.for_each([&](const UdpEndpoint& endpoint) {
            stats::FlowRow row;
            row.kind = stats::FlowKind::udp;
            row.ring = i;
            row.local = stats::to_address(endpoint.local);
            row.remote = stats::to_address(endpoint.remote);
            list.add(row);
        });
    }
}

void list_latencies() {
    stats::Listing<stats::LatencyRow> list;
    for_each_own_socket([&](Socket& socket, int fd) {
        const LatencyProbe* probe = socket.latency.probe();
        if (probe == nullptr || socket.fd() != fd) return;
        stats::LatencyRow row;
        row.fd = fd;
        row.receive = probe->receive;
        row.send = probe->send;
        list.add(row);
    });
}

void list_memberships() {
    stats::Listing<stats::MembershipRow> list;
    for_each_own_socket([&](Socket& socket, int fd) {
        if (socket.kind == ObjectKind::udp && socket.fd() == fd)
            static_cast<UdpSocket&>(socket).list_memberships(list);
    });
}

void list_rules() {
    static_assert(unsigned(stats::RuleUse::covered) == unsigned(RuleUse::covered));
    stats::Listing<stats::RuleRow> list;
    for (const RuleReview& review : Runtime::snapshot().rules.review()) {
        stats::RuleRow row;
        row.use = stats::RuleUse(review.use);
        row.line = review.rule->line;
        row.covered_by = review.by ? review.by->line : 0;
        row.matches = review.rule->matches.count();
        copy_name(row.text, review.rule->text);
        list.add(row);
    }
}

void switch_latency(const stats::Control& wish) {
    for_each_own_socket([&](Socket& socket, int fd) {
        if (wish.latency_fds.has(fd)) socket.latency.turn(wish.latency_on != 0);
    });
}

void list(uint32_t kinds) {
    const auto wanted = [&](stats::SegmentKind kind) { return (kinds & list_bit(kind)) != 0; };
    if (wanted(stats::SegmentKind::options)) list_options();
    if (wanted(stats::SegmentKind::routes)) list_routes();
    if (wanted(stats::SegmentKind::neighbors)) list_neighbors();
    if (wanted(stats::SegmentKind::flows)) list_flows();
    if (wanted(stats::SegmentKind::latencies)) list_latencies();
    if (wanted(stats::SegmentKind::memberships)) list_memberships();
    if (wanted(stats::SegmentKind::rules)) list_rules();
}

void set_log(const stats::Control& wish) {
    if (wish.log_level != stats::kKeep)
        log_set_level(
            LogLevel(std::clamp<int32_t>(wish.log_level, int(LogLevel::none), int(LogLevel::all))));
    frame_log_level_changed();
    if (log_enabled(LogLevel::debug))
        for_each_own_socket([](Socket& socket, int) { socket.latency.turn(true); });
    if (wish.log_details != stats::kKeep) log_set_details(wish.log_details);
    const LogConfig now = log_config();
    stats::set_log_state(int(now.level), now.details);
}

// fn(what the viewers wish) if one has asked for `verb`.
template <class Fn>
void meet(stats::Verb verb, Fn&& fn) {
    const uint64_t asked = stats::asked(verb);
    if (asked == 0) return;
    fn(stats::control());
    stats::answer(verb, asked);
}

void end_capture() {
    stats::stop_capture();
    // Records are filled under the lease of a shard: whoever enters one now sees that there is no capture.
    for (Shard* shard : Runtime::shards()) LeaseGuard guard(shard->lease());
    stats::free_capture();
}

void switch_capture(const stats::Control& wish) {
    if (wish.capture_on == 0) return end_capture();
    char directory[4096];
    stats::page_directory(directory, sizeof directory);
    stats::set_capture_error(
        stats::start_capture(directory, wish.capture_bytes, wish.capture_on, monotonic_now()));
}

}  // namespace

void stats_requests() {
    meet(stats::Verb::log, set_log);
    meet(stats::Verb::latency, switch_latency);
    meet(stats::Verb::capture, switch_capture);
    if (stats::capture_is_over(monotonic_now())) end_capture();
    meet(stats::Verb::list, [](const stats::Control& wish) { list(wish.list_kinds); });
    meet(stats::Verb::dump, [](const stats::Control& wish) {
        dump_descriptor(wish.dump_fd,
                        LogLevel(std::clamp<int32_t>(wish.dump_level, int(LogLevel::panic),
                                                     int(LogLevel::all))));
    });
}

}  // namespace vma::sock
