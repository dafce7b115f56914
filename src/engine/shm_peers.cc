#include "engine/shm_peers.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "base/clock.h"
#include "base/close_aside.h"
#include "base/descriptor_message.h"
#include "base/high_fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "dev/shm/handshake.h"
#include "dev/shm/shm_ring.h"
#include "engine/internal_thread.h"
#include "engine/netlink.h"
#include "engine/network_monitor.h"
#include "engine/runtime.h"
#include "engine/shm_abroad.h"

namespace vma {
namespace {

constexpr Duration kAskAgain = Duration::millis(50);    // for a name that nobody had
constexpr Duration kLeaveAlone = Duration::seconds(1);  // one whose owner refused, or is gone
constexpr Duration kHandshake = Duration::seconds(1);
// Each costs 2 MiB of shared memory in this process and the other; who comes later stays with the kernel.
constexpr unsigned kMostPeers = 64;
static_assert(kMostPeers <= shm::ShmRing::kMostPairs);
constexpr int kEstablished = 1;  // enum of linux/net/tcp_states.h

struct Said {
    ShmPeerId from = 0;
    ShmMessage message;
    int memory = -1;
};

// Of messages that are not out yet: the socket had no room.
struct Unsaid {
    ShmMessage message;
    int memory = -1;
};

struct Peer {
    enum class State : uint8_t { opening, joining, open };
    OwnFd channel;
    State state = State::opening;
    uint16_t port = 0, slot = 0;  // under which it was found; 0: it found us
    // Of one in another network namespace: what both were told, and where it was found; port 0: it found us.
    uint64_t introduction = 0;
    Endpoint abroad;
    bool forgotten = false;  // by who introduced us
    Instant since;
    std::unique_ptr<shm::Opener> opener;
    shm::Neighbor who;
    shm::PairId pair = 0;
    std::deque<Unsaid> unsaid;
};

struct Place {
    std::unique_ptr<Peer> peer;
    uint32_t generation = 0;
};

struct Name {
    OwnFd door;
    uint16_t port = 0;
};

// A name that was asked for in vain.
struct Vain {
    uint16_t port, slot;
    Instant until;
};

// Whom we have just asked for, or lost.
struct AskedAbroad {
    Endpoint where;
    Instant until;
};

// Who waits in exchange_back().
struct Waiting {
    ShmPeerId peer;
    FlowTuple tuple;
    bool done = false;
    Said said;
};

struct State {
    // Peers, their channels, waiting, deferred. Taken after a socket's control lock.
    std::mutex lock;
    std::vector<Place> places;
    std::vector<Waiting*> waiting;
    std::deque<Said> deferred;  // read by a thread that waits for something else
    // What the sink is hearing. It may wait for the lock of a socket whose owner has just begun to wait for this very word.
    std::vector<const Said*> in_hand;
    std::vector<uint16_t> to_publish;
    OwnFd set;  // epoll set of all channels and doors
    std::atomic<uint64_t> key{0};
    std::atomic<ShmSink*> sink{nullptr};
    ShmAbroad abroad;
    // Internal thread only.
    std::vector<std::unique_ptr<Name>> names;
    std::vector<Vain> vain;
    std::vector<AskedAbroad> asked_abroad;
    uint32_t links = 0;  // of `abroad`, the last one that is watched
    std::vector<uint16_t> published;
    shm::Self self;
    shm::ShmRing* ring = nullptr;
    Shard* shard = nullptr;
    netlink::Socket diag;
    bool failed = false;
};

State& state() {
    alignas(State) static unsigned char memory[sizeof(State)];
    static State* made = new (memory) State;
    return *made;
}

// Events of the set: places of peers below, ports of names above.
constexpr uint64_t kDoor = 1ull << 32;
constexpr uint64_t kLink = 1ull << 33;

socklen_t name_of(uint16_t port, unsigned slot, sockaddr_un& out) {
    out = {};
    out.sun_family = AF_UNIX;
    const auto end = fmt::format_to_n(out.sun_path + 1, sizeof out.sun_path - 1,
                                      "vma.shm.{}.tcp.{}.{}", shm::kVersion, port, slot);
    return socklen_t(offsetof(sockaddr_un, sun_path) + 1 + end.size);
}

Peer* peer_of(State& s, ShmPeerId id) {
    const uint64_t i = (id & 0xffffffff) - 1;
    return i < s.places.size() && s.places[i].generation == id >> 32 ? s.places[i].peer.get()
                                                                     : nullptr;
}
ShmPeerId id_of(const State& s, size_t i) {
    return uint64_t(s.places[i].generation) << 32 | (i + 1);
}

// What it takes to have a name, and to ask for one. Internal thread.
bool ready(State& s) {
    if (s.set.valid()) return !s.failed;
    s.failed = true;
    const int set = sys::epoll_create1(EPOLL_CLOEXEC);
    if (set < 0 || !s.set.adopt(set)) return false;
    const int probe = sys::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe < 0) return false;
    const Result<uint64_t> key = namespace_key(probe);
    sys::close(probe);
    if (!key || getrandom(&s.self.id, sizeof s.self.id, GRND_NONBLOCK) != sizeof s.self.id)
        return false;
    s.self.namespace_cookie = *key;
    s.key.store(*key, std::memory_order_release);
    s.failed = false;
    return true;
}

// What only a process with neighbours needs. Internal thread.
bool has_ring(State& s) {
    if (s.shard) return s.shard->open();
    if (s.failed) return false;
    if (s.diag.open(NETLINK_SOCK_DIAG)) s.shard = Runtime::shm_shard(&s.ring);
    s.failed = s.shard == nullptr;
    return !s.failed;
}

void listen_to(State& s, int fd, uint64_t what, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = what;
    if (sys::epoll_ctl(s.set.fd(), EPOLL_CTL_ADD, fd, &event) == -EEXIST)
        sys::epoll_ctl(s.set.fd(), EPOLL_CTL_MOD, fd, &event);
}

void close_memory(int fd) {
    if (fd < 0) return;
    if (sys::fcntl(fd, F_GET_SEALS) >= 0)
        sys::close(fd);
    else
        close_aside(fd);
}

// [lock] A place for a peer with this channel. Null: there is none.
Peer* add(State& s, std::unique_ptr<Peer> peer, Peer::State how) {
    size_t i = 0;
    while (i < s.places.size() && s.places[i].peer) i++;
    if (i == kMostPeers) return nullptr;
    if (i == s.places.size()) s.places.emplace_back();
    peer->state = how;
    peer->since = monotonic_now();
    s.places[i].generation++;
    s.places[i].peer = std::move(peer);
    listen_to(s, s.places[i].peer->channel.fd(), i, EPOLLIN);
    return s.places[i].peer.get();
}

void drop(State& s, size_t i) {
    std::unique_ptr<Peer> gone;
    {
        std::lock_guard guard(s.lock);
        gone = std::move(s.places[i].peer);
    }
    if (!gone) return;
    sys::epoll_ctl(s.set.fd(), EPOLL_CTL_DEL, gone->channel.fd(), nullptr);
    for (const Unsaid& u : gone->unsaid) close_memory(u.memory);
    if (gone->port) s.vain.push_back({gone->port, gone->slot, monotonic_now() + kLeaveAlone});
    // Of one that was a neighbour this says nothing about others who accept there.
    if (gone->abroad.port && gone->state != Peer::State::open)
        s.asked_abroad.push_back({gone->abroad, monotonic_now() + kLeaveAlone});
    if (gone->introduction && !gone->forgotten) s.abroad.forget(gone->introduction);
    const ShmPeerId id = uint64_t(s.places[i].generation) << 32 | (i + 1);
    if (gone->pair) {
        const shm::PairId pair = gone->pair;
        LeaseGuard lease(s.shard->lease());
        if (s.shard->open()) {
            s.ring->neighbor_gone(pair);
            s.shard->drain();
            s.shard->tcp().peers_gone(
                [&](const FlowTuple& t) {
                    return s.ring->routed_to({t.local, t.remote, IPPROTO_TCP}, pair);
                },
                monotonic_now());
            s.ring->remove_pair(pair);
        }
    }
    if (ShmSink* const sink = s.sink.load(std::memory_order_acquire)) sink->shm_gone(id);
}

bool give_pair(State& s, Peer& peer, shm::PairParts parts) {
    std::string why;
    if (!has_ring(s)) {
        parts.close_all();
        return false;
    }
    LeaseGuard lease(s.shard->lease());
    const auto pair = s.ring->add_pair(parts, &why);
    if (!pair) {
        vma_log(debug, "engine", "no pair with process {}: {}", peer.who.pid, why);
        return false;
    }
    peer.pair = *pair;
    peer.state = Peer::State::open;
    peer.opener.reset();
    return true;
}

// What one says of oneself to a peer. Who is in another namespace is told by the introduction instead.
shm::Self self_to(const State& s, const Peer& peer) {
    shm::Self self = s.self;
    if (peer.introduction) self.namespace_cookie = peer.introduction;
    return self;
}

// False: this attempt is over.
bool shake_hands(State& s, Peer& peer) {
    std::string why;
    if (peer.state == Peer::State::opening) {
        const auto parts = peer.opener->answer(peer.channel.fd(), &peer.who, &why);
        if (!parts) return parts.error() == EAGAIN;
        return give_pair(s, peer, *parts);
    }
    shm::Joiner joiner;
    const auto who = joiner.hello(peer.channel.fd(), self_to(s, peer), &why);
    if (!who) return who.error() == EAGAIN;
    peer.who = *who;
    const auto parts = joiner.welcome(peer.channel.fd(), &why);
    return parts && give_pair(s, peer, *parts);
}

// [lock] The next message of a channel. 0; EAGAIN; else the channel is over.
int read_one(const Peer& peer, Said& out) {
    iovec part{&out.message, sizeof out.message};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))];
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    const ssize_t n = sys::recvmsg(peer.channel.fd(), &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return int(-n);
    for_each_passed(m, [&](int fd) {
        close_memory(out.memory);
        out.memory = fd;
    });
    const bool memory = out.memory >= 0 && sys::fcntl(out.memory, F_GET_SEALS) >= 0;
    if (memory) out.memory = raised(out.memory);
    if (n != sizeof out.message || (m.msg_flags & MSG_TRUNC) ||
        out.message.magic != ShmMessage::kMagic || (out.memory >= 0 && !memory)) {
        close_memory(out.memory);
        out.memory = -1;
        return n == 0 ? ECONNRESET : EPROTO;
    }
    return 0;
}

// [lock] Is it what somebody waits for?
bool waits_for(const Waiting& w, const Said& said) {
    return !w.done && said.message.word == ShmWord::back && w.peer == said.from &&
           w.tuple == said.message.tuple();
}

bool hand_to_waiting(State& s, const Said& said) {
    for (Waiting* w : s.waiting) {
        if (!waits_for(*w, said)) continue;
        w->said = said;
        w->done = true;
        return true;
    }
    return false;
}

// [lock] Who begins to wait for what has come already.
void take_what_came(State& s, Waiting& me) {
    for (const Said* said : s.in_hand) {
        if (!waits_for(me, *said)) continue;
        // Whoever has it in hand closes its memory, and finds that the connection has left the ring.
        me.said = *said;
        if (said->memory >= 0) me.said.memory = duplicate_high(said->memory);
        me.done = true;
        return;
    }
    const auto came = std::find_if(s.deferred.begin(), s.deferred.end(),
                                   [&](const Said& said) { return waits_for(me, said); });
    if (came == s.deferred.end()) return;
    me.said = *came;
    me.done = true;
    s.deferred.erase(came);
}

// `said` has been in s.in_hand since the lock was held under which it was read.
void hand_out(State& s, const Said& said) {
    if (ShmSink* const sink = s.sink.load(std::memory_order_acquire))
        sink->shm_message(said.from, said.message, said.memory);
    {
        std::lock_guard guard(s.lock);
        s.in_hand.erase(std::find(s.in_hand.begin(), s.in_hand.end(), &said));
    }
    close_memory(said.memory);
}

// [lock] 0, EAGAIN, or an errno of sendmsg(2).
int write_one(const Peer& peer, const ShmMessage& message, int memory) {
    const iovec part{const_cast<ShmMessage*>(&message), sizeof message};
    const Status sent =
        send_with_fds(peer.channel.fd(), {&part, 1}, {&memory, memory >= 0 ? size_t(1) : 0});
    return sent ? 0 : sent.error();
}

void flush_unsaid(State& s, size_t i) {
    std::lock_guard guard(s.lock);
    Peer* const peer = s.places[i].peer.get();
    if (peer == nullptr || peer->unsaid.empty()) return;
    while (!peer->unsaid.empty()) {
        const Unsaid& u = peer->unsaid.front();
        if (write_one(*peer, u.message, u.memory) == EAGAIN) return;
        close_memory(u.memory);
        peer->unsaid.pop_front();
    }
    listen_to(s, peer->channel.fd(), i, EPOLLIN);
}

// All that a neighbour has said. False: it is gone.
bool listen_all(State& s, size_t i) {
    for (unsigned n = 0; n < 256; n++) {
        Said said;
        {
            std::lock_guard guard(s.lock);
            Peer* const peer = s.places[i].peer.get();
            if (peer == nullptr) return true;
            said.from = id_of(s, i);
            const int error = read_one(*peer, said);
            if (error == EAGAIN) return true;
            if (error != 0) return false;
            if (hand_to_waiting(s, said)) continue;
            s.in_hand.push_back(&said);
        }
        hand_out(s, said);
    }
    return true;
}

void publish_now(State& s, uint16_t port) {
    if (std::find(s.published.begin(), s.published.end(), port) != s.published.end() ||
        s.names.size() == ShmPeers::kMostPorts || !ready(s))
        return;
    s.published.push_back(port);
    const int fd = sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    auto name = std::make_unique<Name>();
    name->port = port;
    if (fd < 0 || !name->door.adopt(fd)) return;
    for (unsigned slot = 0; slot < ShmPeers::kMostSlots; slot++) {
        sockaddr_un where;
        const socklen_t len = name_of(port, slot, where);
        const int bound =
            sys::bind(name->door.fd(), reinterpret_cast<const sockaddr*>(&where), len);
        if (bound == -EADDRINUSE) continue;
        if (bound < 0 || int(sys::raw(SYS_listen, name->door.fd(), 64)) < 0) return;
        listen_to(s, name->door.fd(), kDoor | s.names.size(), EPOLLIN);
        s.names.push_back(std::move(name));
        return;
    }
}

void open_door(State& s, const Name& name) {
    for (;;) {
        const int fd =
            int(sys::raw(SYS_accept4, name.door.fd(), 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd < 0) return;
        auto peer = std::make_unique<Peer>();
        if (!peer->channel.adopt(fd)) continue;
        std::lock_guard guard(s.lock);
        add(s, std::move(peer), Peer::State::joining);
    }
}

void say_hello(State& s, Peer& peer) {
    peer.opener = std::make_unique<shm::Opener>();
    std::string why;
    if (!peer.opener->hello(peer.channel.fd(), self_to(s, peer), shm::kDefaultRingBytes, &why))
        vma_log(debug, "engine", "no memory to share: {}", why);
}

// All whom we were introduced to.
void meet_abroad(State& s) {
    ShmAbroad::Met met;
    while (s.abroad.next(met)) {
        auto peer = std::make_unique<Peer>();
        if (!peer->channel.adopt(met.channel) || met.introduction == 0) continue;
        peer->introduction = met.introduction;
        peer->abroad = met.sought;
        std::lock_guard guard(s.lock);
        const bool opens = met.sought.port != 0;
        Peer* const added =
            add(s, std::move(peer), opens ? Peer::State::opening : Peer::State::joining);
        if (added && opens) say_hello(s, *added);
    }
}

// The link is watched, and heard.
void turn_abroad(State& s, Instant now) {
    s.abroad.turn(now);
    if (s.abroad.links() == s.links || !ready(s)) return;
    s.links = s.abroad.links();
    if (s.abroad.fd() >= 0) listen_to(s, s.abroad.fd(), kLink, EPOLLIN);
}

// The kernel's own word about a connection: the user of its owner. Negative: there is none.
int64_t user_of(State& s, const FlowTuple& tuple) {
    netlink::Request request(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST);
    inet_diag_req_v2 ask{};
    ask.sdiag_family = AF_INET;
    ask.sdiag_protocol = IPPROTO_TCP;
    ask.idiag_states = ~0u;
    ask.id.idiag_sport = __builtin_bswap16(tuple.local.port);
    ask.id.idiag_dport = __builtin_bswap16(tuple.remote.port);
    ask.id.idiag_src[0] = __builtin_bswap32(tuple.local.addr.v4_host());
    ask.id.idiag_dst[0] = __builtin_bswap32(tuple.remote.addr.v4_host());
    ask.id.idiag_cookie[0] = ask.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    request.head(&ask, sizeof ask);
    int64_t user = -1;
    const auto each = [&](const netlink::Message& m) {
        const auto found = m.head<inet_diag_msg>();
        if (found.idiag_state == kEstablished && found.id.idiag_dport == ask.id.idiag_dport)
            user = found.idiag_uid;
    };
    const auto ignore = [](const netlink::Message&) {};
    (void)s.diag.dump(request, each, ignore);
    return user;
}

}  // namespace

ShmMessage ShmMessage::about(ShmWord what, const FlowTuple& tuple) {
    ShmMessage m;
    m.word = what;
    m.from_addr = tuple.local.addr.v4_host();
    m.to_addr = tuple.remote.addr.v4_host();
    m.from_port = tuple.local.port;
    m.to_port = tuple.remote.port;
    return m;
}

FlowTuple ShmMessage::tuple() const {
    return {{IpAddr::v4(to_addr), to_port}, {IpAddr::v4(from_addr), from_port}};
}

void ShmPeers::set_sink(ShmSink* sink) { state().sink.store(sink, std::memory_order_release); }
uint64_t ShmPeers::namespace_key() { return state().key.load(std::memory_order_acquire); }
int ShmPeers::wake_fd() { return state().set.fd(); }

void ShmPeers::publish(uint16_t port) {
    State& s = state();
    {
        std::lock_guard guard(s.lock);
        s.to_publish.push_back(port);
    }
    InternalThread::poke();
}

ShmPeers::Search ShmPeers::search(uint16_t port, std::span<ShmPeerId> out, unsigned* count) {
    State& s = state();
    *count = 0;
    const Instant now = monotonic_now();
    s.vain.erase(
        std::remove_if(s.vain.begin(), s.vain.end(), [&](const Vain& v) { return v.until <= now; }),
        s.vain.end());
    bool wait = false;
    for (unsigned slot = 0; slot < kMostSlots; slot++) {
        bool known = false;
        for (size_t i = 0; i < s.places.size() && !known; i++) {
            const Peer* const peer = s.places[i].peer.get();
            if (peer == nullptr || peer->port != port || peer->slot != slot) continue;
            known = true;
            if (peer->state != Peer::State::open)
                wait = true;
            else if (*count < out.size())
                out[(*count)++] = id_of(s, i);
        }
        if (known) continue;
        if (std::any_of(s.vain.begin(), s.vain.end(),
                        [&](const Vain& v) { return v.port == port && v.slot == slot; }))
            continue;
        sockaddr_un where;
        const socklen_t len = name_of(port, slot, where);
        auto found = std::make_unique<Peer>();
        if (!found->channel.adopt(
                sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)))
            break;
        if (sys::connect(found->channel.fd(), reinterpret_cast<const sockaddr*>(&where), len) < 0) {
            s.vain.push_back({port, uint16_t(slot), now + kAskAgain});
            break;  // names are taken from the lowest slot on
        }
        if (!ready(s)) break;
        std::lock_guard guard(s.lock);
        Peer* const peer = add(s, std::move(found), Peer::State::opening);
        if (peer == nullptr) break;
        peer->port = port;
        peer->slot = uint16_t(slot);
        say_hello(s, *peer);
        wait = true;
    }
    return wait ? Search::wait : *count ? Search::found : Search::nobody;
}

ShmPeers::Search ShmPeers::search_abroad(const Endpoint& remote, std::span<ShmPeerId> out,
                                         unsigned* count) {
    State& s = state();
    *count = 0;
    if (!ready(s)) return Search::nobody;
    const Instant now = monotonic_now();
    std::erase_if(s.asked_abroad, [&](const AskedAbroad& v) { return v.until <= now; });
    // Also when some are known: another one may have come, and each has a turn.
    if (std::none_of(s.asked_abroad.begin(), s.asked_abroad.end(),
                     [&](const AskedAbroad& v) { return v.where == remote; })) {
        s.asked_abroad.push_back({remote, now + kAskAgain});
        const Status sought = s.abroad.seek(remote, now);
        turn_abroad(s, now);
        if (sought) meet_abroad(s);
    }
    bool wait = false;
    for (size_t i = 0; i < s.places.size(); i++) {
        const Peer* const peer = s.places[i].peer.get();
        if (peer == nullptr || peer->abroad != remote || peer->forgotten) continue;
        if (peer->state != Peer::State::open)
            wait = true;
        else if (*count < out.size())
            out[(*count)++] = id_of(s, i);
    }
    return wait ? Search::wait : *count ? Search::found : Search::nobody;
}

void ShmPeers::publish_abroad(const Endpoint& local) { state().abroad.publish(local); }

bool ShmPeers::owns(ShmPeerId id, const FlowTuple& tuple) {
    State& s = state();
    const Peer* const peer = peer_of(s, id);
    return peer && (peer->introduction || user_of(s, tuple) == int64_t(peer->who.uid));
}

bool ShmPeers::show(ShmPeerId id, int twin) {
    State& s = state();
    Peer* const peer = peer_of(s, id);
    if (peer == nullptr || peer->introduction == 0) return false;
    const Status shown = s.abroad.show(peer->introduction, twin);
    // The broker is another one now: its next introduction counts. What goes by this neighbour's memory goes on.
    if (shown.error() == ENOENT || shown.error() == ENOLINK) peer->forgotten = true;
    return shown.ok();
}

bool ShmPeers::prove(ShmPeerId id, int twin) {
    State& s = state();
    const Peer* const peer = peer_of(s, id);
    return peer && (peer->introduction == 0 || s.abroad.prove(peer->introduction, twin));
}

Status ShmPeers::route(ShmPeerId id, const FlowTuple& tuple) {
    State& s = state();
    shm::PairId pair = 0;
    {
        std::lock_guard guard(s.lock);
        if (const Peer* const peer = peer_of(s, id)) pair = peer->pair;
    }
    if (pair == 0 || !s.shard->open()) return Errno{EPIPE};
    return s.ring->route({tuple.local, tuple.remote, IPPROTO_TCP}, pair);
}

Status ShmPeers::send(ShmPeerId to, const ShmMessage& message, int memory) {
    State& s = state();
    std::lock_guard guard(s.lock);
    Peer* const peer = peer_of(s, to);
    if (peer == nullptr || peer->state != Peer::State::open) return Errno{EPIPE};
    if (peer->unsaid.empty()) {
        const int error = write_one(*peer, message, memory);
        if (error != EAGAIN) return error ? Status(Errno{EPIPE}) : Status();
    }
    const int kept = memory >= 0 ? duplicate_high(memory) : -1;
    if (memory >= 0 && kept < 0) return Errno{EPIPE};
    peer->unsaid.push_back({message, kept});
    listen_to(s, peer->channel.fd(), (to & 0xffffffff) - 1, EPOLLIN | EPOLLOUT);
    return {};
}

Status ShmPeers::exchange_back(ShmPeerId with, const ShmMessage& mine, int memory, Duration within,
                               ShmMessage* theirs, int* their_memory) {
    State& s = state();
    const Instant deadline = monotonic_now() + within;
    Waiting me;
    me.peer = with;
    // As the answer names it: by our own end.
    me.tuple = {{IpAddr::v4(mine.from_addr), mine.from_port},
                {IpAddr::v4(mine.to_addr), mine.to_port}};
    {
        std::lock_guard guard(s.lock);
        s.waiting.push_back(&me);
        take_what_came(s, me);
    }
    Status result = send(with, mine, memory);
    while (result) {
        int channel = -1;
        Said other;
        {
            std::lock_guard guard(s.lock);
            Peer* const peer = peer_of(s, with);
            // The internal thread may be what waits here, and nobody else would listen.
            while (peer && !me.done && other.from == 0) {
                Said said;
                said.from = with;
                const int error = read_one(*peer, said);
                if (error == EAGAIN) break;
                if (error != 0) {
                    result = Errno{EPIPE};  // the end itself is for turn() to see, again
                    break;
                }
                if (hand_to_waiting(s, said)) continue;
                if (InternalThread::is_current()) {
                    other = said;
                    s.in_hand.push_back(&other);
                } else {
                    s.deferred.push_back(said);
                    InternalThread::poke();
                }
            }
            if (me.done || !result) break;
            if (peer == nullptr) result = Errno{EPIPE};
            channel = peer ? peer->channel.fd() : -1;
        }
        if (!result) break;
        // Two internal threads may wait for each other, each with another connection.
        if (other.from != 0) {
            hand_out(s, other);
            continue;
        }
        if (monotonic_now() >= deadline) {
            result = Errno{ETIMEDOUT};
            break;
        }
        pollfd look{channel, POLLIN, 0};
        const timespec slice{0, 1'000'000};  // another thread may read the answer for us
        sys::ppoll(&look, 1, &slice);
    }
    std::lock_guard guard(s.lock);
    s.waiting.erase(std::find(s.waiting.begin(), s.waiting.end(), &me));
    if (!me.done) return result ? Status(Errno{ETIMEDOUT}) : result;
    *theirs = me.said.message;
    *their_memory = me.said.memory;
    return {};
}

void ShmPeers::turn() {
    State& s = state();
    for (;;) {
        uint16_t port;
        {
            std::lock_guard guard(s.lock);
            if (s.to_publish.empty()) break;
            port = s.to_publish.back();
            s.to_publish.pop_back();
        }
        publish_now(s, port);
    }
    turn_abroad(s, monotonic_now());
    if (!s.set.valid()) return;
    for (;;) {
        Said said;
        {
            std::lock_guard guard(s.lock);
            if (s.deferred.empty()) break;
            said = s.deferred.front();
            s.deferred.pop_front();
            s.in_hand.push_back(&said);
        }
        hand_out(s, said);
    }
    epoll_event events[32];
    const int n = sys::epoll_wait(s.set.fd(), events, 32, 0);
    for (int e = 0; e < n; e++) {
        const uint64_t what = events[e].data.u64;
        if (what & kLink) {
            meet_abroad(s);
            continue;
        }
        if (what & kDoor) {
            open_door(s, *s.names[what & 0xffffffff]);
            continue;
        }
        const auto i = size_t(what);
        Peer* const peer = s.places[i].peer.get();
        if (peer == nullptr) continue;
        if (events[e].events & EPOLLOUT) flush_unsaid(s, i);
        const bool goes_on =
            peer->state == Peer::State::open ? listen_all(s, i) : shake_hands(s, *peer);
        if (!goes_on) drop(s, i);
    }
    // Whoever never answers a hello is forgotten; one who was asked for makes room for the next question.
    const Instant now = monotonic_now();
    for (size_t i = 0; i < s.places.size(); i++) {
        const Peer* const peer = s.places[i].peer.get();
        if (peer && peer->state != Peer::State::open && peer->since + kHandshake < now) drop(s, i);
    }
}

void ShmPeers::forget_in_child() {
    State& s = state();
    ShmSink* const sink = s.sink.load(std::memory_order_relaxed);
    // The descriptors are closed already, and what the records point to is the parent's.
    State* const fresh = new (&s) State;
    fresh->sink.store(sink, std::memory_order_relaxed);
}

}  // namespace vma
