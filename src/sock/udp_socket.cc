// Control path of a UDP socket: who serves it, and the flows that follow from it.
#include "sock/udp_socket.h"
#include "sock/stats_rows.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <new>

#include "base/clock.h"
#include "base/log.h"
#include "sock/broker_link.h"
#include "sock/context.h"
#include "sock/cyclic.h"
#include "sock/epoll.h"
#include "sock/fd_table.h"
#include "sock/fork.h"
#include "sock/option_rows.h"
#include "sock/walk.h"

namespace vma::sock {
namespace {

Slab<UdpSocket> g_slab;

// Reasons that concern only what is received; the socket may still send by the ring.
bool only_receiving(Reason why) { return why == Reason::rule || why == Reason::multicast; }

}  // namespace

UdpSocket* UdpSocket::create(int fd, int domain, int type, int protocol) {
    bool recycled;
    void* memory = g_slab.take(&recycled);
    if (memory == nullptr) return nullptr;
    const uint32_t generation = recycled ? static_cast<UdpSocket*>(memory)->generation + 1 : 1;
    auto* socket = new (memory) UdpSocket(generation, fd, domain, type, protocol);
    if (const int off = 0;
        !Runtime::options().tx_mc_loopback &&
        sys::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &off, sizeof off) == 0)
        socket->multicast_loop_.store(false, std::memory_order_relaxed);
    socket->publish_state();
    return socket;
}

void UdpSocket::destroy(UdpSocket* socket) {
    Epoll::forget_member(*socket);
    stats::remove_socket(socket->row_);
    std::vector<Membership>().swap(socket->memberships_);  // the record is used again as it is
    std::vector<Fragments>().swap(socket->fragments_);
    socket->latency.forget();
    delete socket->stamping_.exchange(nullptr);
    delete socket->templates.exchange(nullptr);
    forget_cyclic(*socket);
    g_slab.give(socket);
}

void udp_forget_in_child() {
    g_slab.forget_lock_in_child();
    cyclic_forget_in_child();
}

void UdpSocket::read_names(int fd) {
    sockaddr_storage name{};
    socklen_t len = sizeof name;
    local_ = {};
    remote_ = {};
    if (sys::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &len) == 0)
        Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&name), len, local_);
    len = sizeof name;
    if (sys::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &len) == 0)
        Endpoint::from_sockaddr(reinterpret_cast<sockaddr*>(&name), len, remote_);
}

Outcome UdpSocket::bind(int fd, const sockaddr* addr, socklen_t len) {
    Endpoint contested;
    {
        std::lock_guard guard(control_);
        const int result = sys::bind(fd, addr, len);
        if (result < 0) return Outcome::error(-result);
        decide_receive(fd);
        publish_state();
        if (is_contested_) contested = local_;
    }
    // Of sockets that share an address (SO_REUSEADDR) unicast is for the one that bound it last, so the first one's ring must not
    // take it any more. Without our own lock: two may do this to each other.
    if (contested.port != 0)
        for_each_own_socket([&](Socket& other, int) {
            if (&other != this && other.kind == ObjectKind::udp)
                static_cast<UdpSocket&>(other).yield_unicast(contested);
        });
    return Outcome::value(0);
}

Outcome UdpSocket::connect(int fd, const sockaddr* addr, socklen_t len) {
    std::lock_guard guard(control_);
    const int result = sys::connect(fd, addr, len);
    if (result < 0) return Outcome::error(-result);
    decide_receive(fd);
    publish_state();
    return Outcome::value(0);
}

bool UdpSocket::settle(int fd, bool sending) {
    std::lock_guard guard(control_);
    if (state() != SocketState::undecided) return state() == SocketState::offloaded;
    if (local_.port != 0) {
        become_kernel(waits_because_);
    } else if (sending) {
        const sockaddr_in any = Endpoint{}.to_sockaddr_in();
        if (sys::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) < 0) return false;
        decide_receive(fd);
        if (state() == SocketState::undecided) become_kernel(waits_because_);
        publish_state();
    }
    return state() == SocketState::offloaded;
}

const Rules& UdpSocket::decided_by() {
    const Rules* rules = decided_by_.load(std::memory_order_acquire);
    if (rules == nullptr) {
        const Rules* now = &Runtime::snapshot().rules;
        rules = decided_by_.compare_exchange_strong(rules, now) ? now : rules;
    }
    return *rules;
}

Reason UdpSocket::receive_obstacle(int fd, NetSpace& space) {
    if (sends_only_) return Reason::unsupported_option;
    const Rules& rules = decided_by();
    const auto view = space.monitor().view();
    if (remote_.port == 0 && (yields_ || int_option(fd, SOL_SOCKET, SO_REUSEPORT)))
        return Reason::reuseport_shared;
    if (remote_.port != 0) {
        if (!rules.decide(Role::udp_connect, remote_, &local_).offload) return Reason::rule;
        if (remote_.addr.is_multicast()) return Reason::multicast;
        if (remote_.addr.is_loopback() || view->is_local(remote_.addr)) return Reason::loopback;
    }
    if (local_.addr.is_loopback()) return Reason::loopback;
    if (local_.addr.is_multicast()) return Reason::multicast;
    if (!local_.addr.is_any() && view->is_broadcast(local_.addr)) return Reason::broadcast;
    if (!local_.addr.is_any() && !rules.decide(Role::udp_receiver, local_).offload)
        return Reason::rule;
    return Reason::none;
}

uint32_t UdpSocket::queue_limit(int receive_buffer) {
    return std::max(uint32_t(receive_buffer), uint32_t(Runtime::options().rx_bytes_min));
}

UdpSocket::Presence* UdpSocket::present_in(const Shard& shard) {
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++)
        if (presences_[i].shard == &shard) return &presences_[i];
    return nullptr;
}

UdpSocket::Presence* UdpSocket::presence_in(Shard& shard, bool receives) {
    Presence* const there = present_in(shard);
    Presence* const p = there ? there : make_presence(shard);
    if (!receives || p == nullptr || (live_.load(std::memory_order_relaxed) & bit_of(*p)) != 0)
        return p;
    const bool first = present_.load(std::memory_order_relaxed) == 0;
    live_.fetch_or(bit_of(*p), std::memory_order_release);
    present_.fetch_or(bit_of(*p), std::memory_order_release);
    Epoll::follow_lanes(*this);
    Xtreme::settle(*this, shard, !first);
    return p;
}

// Threads that send by different rings may do this at the same time.
UdpSocket::Presence* UdpSocket::make_presence(Shard& shard) {
    const SpinGuard guard(presences_lock_);
    const unsigned count = presence_count_.load(std::memory_order_relaxed);
    if (count == kMaxPresence) return nullptr;
    UdpEndpoint* endpoint = shard.make_udp(local_);
    if (endpoint == nullptr) return nullptr;
    endpoint->owner = this;
    endpoint->screened = screening.on();
    const uint32_t limit = receive_buffer_.load(std::memory_order_relaxed);
    if (limit) endpoint->set_receive_limit(limit);
    endpoint->set_whole_trains(wanted_.load(std::memory_order_relaxed) & kWantGro);
    endpoint->set_tells_drops(wanted_.load(std::memory_order_relaxed) & kWantDrops);
    presences_[count] = {&shard, endpoint, false};
    presence_count_.store(count + 1, std::memory_order_release);
    return &presences_[count];
}

bool UdpSocket::be_present(Shard& shard, const Endpoint& local, const Endpoint& remote,
                           std::span<const IpAddr> addresses, std::span<const Steered> before,
                           Reason* why) {
    LeaseGuard guard(shard.lease());
    Presence* presence = presence_in(shard);
    if (presence == nullptr) return false;
    UdpEndpoint& endpoint = *presence->endpoint;
    if (presence->in_demux) shard.udp().demux.remove(endpoint.tuple());
    endpoint.local = local;
    endpoint.remote = remote;
    presence->in_demux = shard.udp().demux.insert(endpoint.tuple(), endpoint).ok();
    if (!presence->in_demux) return false;
    bool all = true;
    for (const IpAddr& addr : addresses) {
        FlowKey key;
        key.local = {addr, local.port};
        key.remote = remote.port ? remote : Endpoint{};
        key.protocol = IPPROTO_UDP;
        const auto same = [&](const Steered& s) { return s.shard == &shard && s.key == key; };
        if (std::any_of(steered_.begin(), steered_.begin() + steered_count_, same)) continue;
        // A flow that we have already stays in place: asked for again it would look like somebody else's.
        const bool kept = std::any_of(before.begin(), before.end(), same);
        const Status taken = kept || steered_count_ == kMaxKeys ? Status() : shard.steer(key, fd());
        if (steered_count_ == kMaxKeys || !taken) {
            if (!taken && *why == Reason::none) *why = reason_of_steering(taken.error());
            all = false;
            continue;
        }
        steered_[steered_count_++] = {&shard, key};
    }
    return all;
}

// Takes flows away; endpoints keep what they have queued.
void UdpSocket::drop_steering() {
    for (unsigned i = 0; i < steered_count_; i++) {
        LeaseGuard guard(steered_[i].shard->lease());
        steered_[i].shard->unsteer(steered_[i].key);
    }
    steered_count_ = 0;
    follow_fragments();
}

// control_ held. Where the stack puts fragments together, the rings get those that come to the addresses of the socket's flows,
// and the twin does not queue what the kernel makes of them. A ring that cannot do that leaves them to the twin.
void UdpSocket::follow_fragments() {
    if (!Runtime::options().udp_frags) return;
    std::vector<Fragments> wanted;
    for (const Steered& s : std::span(steered_).first(steered_count_))
        if (const Fragments there{s.shard, s.key.local.addr};
            std::find(wanted.begin(), wanted.end(), there) == wanted.end())
            wanted.push_back(there);
    std::erase_if(fragments_, [&](const Fragments& f) {
        if (std::find(wanted.begin(), wanted.end(), f) != wanted.end()) return false;
        LeaseGuard guard(f.shard->lease());
        leave_group(*f.shard, {f.addr, 0});
        return true;
    });
    for (const Fragments& f : wanted) {
        if (std::find(fragments_.begin(), fragments_.end(), f) != fragments_.end()) continue;
        LeaseGuard guard(f.shard->lease());
        if (f.shard->join({f.addr, 0}, fd())) fragments_.push_back(f);
    }
}

// Its unicast datagrams go to the twin, but for those that its rings have already.
void UdpSocket::leave_unicast() {
    drop_steering();
    const unsigned count = presence_count_.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < count; i++) {
        Presence& p = presences_[i];
        LeaseGuard guard(p.shard->lease());
        if (!p.in_demux) continue;
        p.shard->drain();
        p.shard->udp().demux.remove(p.endpoint->tuple());
        p.in_demux = false;
    }
}

void UdpSocket::yield_unicast(const Endpoint& other) {
    std::lock_guard guard(control_);
    if (state() != SocketState::offloaded || remote_.port != 0 || local_.port != other.port ||
        !(local_.addr.is_any() || local_.addr == other.addr))
        return;
    yields_ = true;
    leave_unicast();
    if (steer_groups(fd()) == 0) reason_.store(Reason::reuseport_shared, std::memory_order_relaxed);
    publish_state();
}

void UdpSocket::leave_shards() {
    drop_steering();
    const unsigned count = presence_count_.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < count; i++) {
        Presence& p = presences_[i];
        LeaseGuard guard(p.shard->lease());
        leave_groups(p);
        p.shard->drain();
        (void)p.shard->set_groups(*p.endpoint, {});
        if (p.in_demux) p.shard->udp().demux.remove(p.endpoint->tuple());
        p.in_demux = false;
    }
}

void UdpSocket::become_kernel(Reason why) {
    tell_served_by_kernel(why);
    reason_.store(why, std::memory_order_relaxed);
    state_.store(SocketState::kernel, std::memory_order_release);
    publish_state();
    TwinEvents::remove(fd());
    Epoll::move_to_kernel(*this, false);
    watch.notify();
}

// Decides anew who receives. Called with control_ held after anything that changes the names of the twin.
void UdpSocket::decide_receive(int fd) {
    if (state() == SocketState::kernel || handed_back_.load(std::memory_order_relaxed)) {
        read_names(fd);
        return;
    }
    read_names(fd);
    options_generation_.fetch_add(1, std::memory_order_relaxed);
    if (local_.port == 0) return;
    Reason why = Reason::none;
    if (space_ == nullptr) space_ = Runtime::namespace_of(fd, &why);
    if (space_ == nullptr) {
        become_kernel(why);
        return;
    }
    // Early: the kernel needs a moment, as long as the first ring takes to open.
    if (state() != SocketState::offloaded) stamp_twin(fd);
    // Old flows go only after the new ones are in place: no datagram of the peer falls between.
    std::array<Steered, kMaxKeys> old;
    const unsigned old_count = steered_count_;
    std::copy(steered_.begin(), steered_.begin() + old_count, old.begin());
    steered_count_ = 0;

    why = receive_obstacle(fd, *space_);
    if (receive_buffer_.load(std::memory_order_relaxed) == 0)
        receive_buffer_.store(queue_limit(int_option(fd, SOL_SOCKET, SO_RCVBUF, 212992)),
                              std::memory_order_relaxed);
    const auto view = space_->monitor().view();
    steered_generation_ = space_->generation();
    unsigned served = 0;
    if (why == Reason::none) {
        const Rules& rules = decided_by();
        bool ruled_out = false;
        int route_oif = 0;
        if (remote_.port != 0) {
            RouteQuery query;
            query.dst = remote_.addr;
            query.src = local_.addr;
            query.protocol = IPPROTO_UDP;
            query.mark = uint32_t(int_option(fd, SOL_SOCKET, SO_MARK));
            query.oif = int_option(fd, SOL_SOCKET, SO_BINDTOIFINDEX);
            const auto route = view->route(query);
            if (!route || route->type != RouteType::unicast)
                why = route && route->type == RouteType::broadcast ? Reason::broadcast
                                                                   : Reason::no_route;
            else
                route_oif = route->oif;
        }
        const int bound_device = int_option(fd, SOL_SOCKET, SO_BINDTOIFINDEX);
        for (const Interface& interface : view->interfaces()) {
            if (why != Reason::none && !served) break;
            if (!NetSpace::can_carry_ring(interface)) continue;
            if (route_oif != 0 && interface.index != route_oif) continue;
            if (bound_device != 0 && interface.index != bound_device) continue;
            std::array<IpAddr, 32> addresses;
            unsigned n = 0;
            for (const InterfaceAddress& a : interface.addresses) {
                if (!a.addr.is_v4() || n == addresses.size()) continue;
                if (!local_.addr.is_any() && a.addr != local_.addr) continue;
                if (!rules.decide(Role::udp_receiver, Endpoint{a.addr, local_.port}).offload) {
                    ruled_out = true;
                    continue;
                }
                addresses[n++] = a.addr;
            }
            // A connected socket with an address of another interface (weak host model): replies still come here.
            if (n == 0 && route_oif != 0) addresses[n++] = local_.addr;
            if (n == 0) continue;
            Reason failed = Reason::none;
            if (space_->policy()) {
                FlowQuery flow;
                flow.protocol = IPPROTO_UDP;
                flow.local = local_;
                flow.remote = remote_;
                flow.ifindex = interface.index;
                std::string culprit;
                failed = space_->policy()->check(flow, *view, &culprit);
                if (failed != Reason::none)
                    vma_log(info, "sock", "UDP port {} on {} stays with the kernel ({}): {}",
                            local_.port, interface.name, reason_name(failed), culprit);
            }
            Shard* shard =
                failed == Reason::none
                    ? space_->shard(interface.index, rings.receive(fd, local_.addr), &failed)
                    : nullptr;
            if (shard == nullptr) {
                if (why == Reason::none) why = failed;
                continue;
            }
            if (be_present(*shard, local_, remote_, {addresses.data(), n}, {old.data(), old_count},
                           &why))
                served++;
            else if (why == Reason::none)
                why = Reason::flow_taken;
        }
        if (served == 0 && why == Reason::none)
            why = ruled_out ? Reason::rule : Reason::interface_unsupported;
    }
    is_contested_ = why == Reason::flow_taken;
    if (served == 0) leave_unicast();
    const bool in_groups = steer_groups(fd) != 0;
    for (unsigned i = 0; i < old_count; i++) {
        if (std::any_of(steered_.begin(), steered_.begin() + steered_count_, [&](const Steered& s) {
                return s.shard == old[i].shard && s.key == old[i].key;
            }))
            continue;
        LeaseGuard guard(old[i].shard->lease());
        old[i].shard->unsteer(old[i].key);
    }
    follow_fragments();
    leave_settled();
    // Shared with sockets that we may not see, until it is connected (then what its peer sends is its own) or joins a group.
    // Its first use tells which it will be.
    if (served == 0 && !in_groups && state() == SocketState::undecided && remote_.port == 0 &&
        (why == Reason::reuseport_shared ||
         (why == Reason::flow_taken && int_option(fd, SOL_SOCKET, SO_REUSEADDR)))) {
        waits_because_ = why;
        return;
    }
    if (served == 0 && !in_groups && !only_receiving(why) && !yields_ && !sends_only_) {
        if (presence_count_.load(std::memory_order_relaxed) != 0) {
            // It was offloaded before: what is queued is read from here first.
            reason_.store(why, std::memory_order_relaxed);
            handed_back_.store(true, std::memory_order_release);
            kernel_send_.store(true, std::memory_order_release);
            leave_shards();
            flush_paced();
            finish_hand_back_if_drained();
        } else {
            become_kernel(why);
        }
        return;
    }
    reason_.store(served || in_groups ? Reason::none : why, std::memory_order_relaxed);
    if (share_.load(std::memory_order_relaxed) == nullptr && (served || in_groups)) {
        Presence& p = presences_[0];
        LeaseGuard guard(p.shard->lease());
        take_share(*p.shard);
    }
    if (state() != SocketState::offloaded) {
        state_.store(SocketState::offloaded, std::memory_order_release);
        if (!TwinEvents::add(fd, this, generation)) {
            // Without it the twin's side could not be watched: better slow than deaf.
            leave_shards();
            become_kernel(Reason::memory);
        }
        watch.notify();  // who waits already must look at the rings from here on
    }
}

void UdpSocket::teardown() {
    std::lock_guard guard(control_);
    if (inherited.load(std::memory_order_relaxed)) return;
    stats_closed(*this);
    reclaim_kept();
    leave_shards();
    Screens::remove(*this);  // no ring tells it anything any more
    Xtreme::remove(*this);
    // A child may hold the descriptor: what is queued is its to read.
    if (const ShareRecord* record = share(); record && record->forks != forks_so_far())
        move_queue_to_twin();
    const unsigned count = presence_count_.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < count; i++) {
        LeaseGuard lease(presences_[i].shard->lease());
        if (PacedFlow* const flow = paced_[i].exchange(nullptr))
            presences_[i].shard->pacing().close(*flow);
        presences_[i].shard->free_udp(presences_[i].endpoint);
    }
    forget_presences();
    rings.give_back();
    give_share();
}

void UdpSocket::forget_presences() {
    presence_count_.store(0, std::memory_order_relaxed);
    present_.store(0, std::memory_order_relaxed);
    live_.store(0, std::memory_order_relaxed);
}

void UdpSocket::forget_locks_in_child() {
    Socket::forget_locks_in_child();
    new (&destinations_lock_) SpinLock;
    new (&presences_lock_) SpinLock;
    if (TxStamping* const stamping = stamping_.load(std::memory_order_acquire))
        stamping->forget_lock_in_child();
}

void UdpSocket::become_twin_in_child() {
    share_.store(nullptr, std::memory_order_relaxed);  // the owner's
    counters.rx_kept.store(0, std::memory_order_relaxed);
    forget_presences();
    steered_count_ = 0;
    memberships_.clear();
    fragments_.clear();
    reason_.store(Reason::fork, std::memory_order_relaxed);
    state_.store(SocketState::kernel, std::memory_order_release);
    publish_state();
    Epoll::move_to_kernel(*this, false);
}

void UdpSocket::network_changed() {
    std::lock_guard guard(control_);
    if (state() != SocketState::offloaded || handed_back_.load(std::memory_order_relaxed) ||
        space_ == nullptr)
        return;
    if (steered_generation_ == space_->generation()) return;
    decide_receive(fd());
    publish_state();
}

bool UdpSocket::has_lost_its_device() {
    if (state() != SocketState::offloaded || handed_back_.load(std::memory_order_relaxed))
        return false;
    const unsigned count = presence_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++)
        if (presences_[i].shard->lost()) return true;
    SpinGuard guard(destinations_lock_);
    return std::any_of(destinations_.begin(), destinations_.end(),
                       [](const Destination& d) { return d.shard != nullptr && d.shard->lost(); });
}

void UdpSocket::touch_neighbors() {
    refreshed_.store(false, std::memory_order_relaxed);
    SpinGuard guard(destinations_lock_);
    for (Destination& d : destinations_) {
        if (!d.used || d.shard == nullptr || space_ == nullptr || d.to.addr.is_multicast())
            continue;
        d.used = false;
        space_->monitor().keep_fresh(d.ifindex, d.next_hop);
    }
}

const char* UdpSocket::ring_kind() const {
    return presence_count_.load(std::memory_order_acquire) ? presences_[0].shard->ring_kind() : "";
}

void Socket::tell_served_by_kernel(Reason why) const {
    if (why == Reason::interface_unsupported)
        vma_log(info, "sock",
                "fd {}: no Ethernet interface that is up and has its address can carry a ring: "
                "served by the kernel",
                fd());
    else
        vma_log(debug, "sock", "fd {}: served by the kernel: {}", fd(), reason_meaning(why));
}

bool Socket::descriptor_closed(int closed) {
    if (descriptors_.fetch_sub(1, std::memory_order_relaxed) == 1) return true;
    if (fd() != closed) return false;
    // Another descriptor of the same description stands in for the one that goes.
    FdTable::for_each([&](int other, Object* object) {
        if (object == this && other != closed) set_fd(other);
    });
    return false;
}

bool Socket::twin_event(uint16_t generation_low, uint32_t events) {
    if (uint16_t(generation) != generation_low) return false;
    if (events & EPOLLERR) twin_error_.store(true, std::memory_order_release);
    kernel_news_.store(true, std::memory_order_release);
    watch.notify();
    return true;
}

}  // namespace vma::sock
