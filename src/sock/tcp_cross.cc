// A connection between two preloaded processes of one host: made by the kernel, moved into the shm ring while it lives, and
// back when one side needs the kernel (tcp_cross_back.cc; docs/decisions/0012-shm-ring.md). The kernel's connection stays all
// the time, idle: it is the name, the port and the way back, so no privilege is needed for any of it.
//
// Everything here but the start and the waits runs on the internal thread, under the socket's control lock.
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/high_fd.h"
#include "base/log.h"
#include "engine/internal_thread.h"
#include "engine/shm_peers.h"
#include "engine/tcp_defaults.h"
#include "repair/repair_socket.h"
#include "sock/context.h"
#include "sock/cross.h"
#include "sock/epoll.h"
#include "sock/option_rows.h"
#include "sock/tcp_socket.h"
#include "sock/walk.h"

namespace vma::sock {

// What an attempt needs to know until it is over.
struct Crossing {
    ShmPeerId peer = 0;
    unsigned asked = 0;   // neighbours that have not answered an offer yet
    bool abroad = false;  // the other end is in another network namespace, if anywhere on this host
    Instant since{};
    uint32_t seq = 0, window = 0;  // ours
    std::vector<uint8_t> unread;   // taken out of the twin, for the program
};

namespace {

constexpr unsigned kAttempts = 5;
constexpr uint32_t kFirstBuffer = 1u << 20;
constexpr uint32_t kFirstWindow = 256 * 1024;
constexpr uint16_t kLargestSegment = 65495;  // of an IPv4 packet

std::atomic<unsigned> g_crossing{0};  // sockets with an attempt under way
// A bit for each port that was told to the registry.
std::atomic<uint64_t> g_published[65536 / 64];
// One for each address and port that was published to other namespaces; two may have the same, and then the second is not.
std::atomic<uint64_t> g_published_abroad[65536 / 64];

bool first_time(std::atomic<uint64_t>* bits, uint16_t number) {
    const uint64_t bit = 1ull << (number % 64);
    auto& word = bits[number / 64];
    return !(word.load(std::memory_order_relaxed) & bit) &&
           (word.fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

constexpr int kEstablished = 1;  // enum of linux/net/tcp_states.h

// What the kernel says of its connection.
struct Totals {
    bool established = false;
    uint64_t written = 0, received = 0;  // bytes of text
    Duration srtt{}, rttvar{};
    uint32_t cwnd = 0;  // segments
};

Totals totals(int fd) {
    tcp_info info{};
    socklen_t len = sizeof info;
    Totals t;
    if (sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ||
        len < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans)
        return t;
    t.established = info.tcpi_state == kEstablished;
    t.written = info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes;
    t.received = info.tcpi_bytes_received;
    t.srtt = Duration::micros(info.tcpi_rtt);
    t.rttvar = Duration::micros(info.tcpi_rttvar);
    t.cwnd = info.tcpi_snd_cwnd;
    return t;
}

FlowTuple reversed(const FlowTuple& t) { return {t.remote, t.local}; }

}  // namespace

// ---- start and end of an attempt

void TcpSocket::publish_port(int accepted) {
    sockaddr_storage name{};
    auto* const sa = reinterpret_cast<sockaddr*>(&name);
    socklen_t len = sizeof name;
    Endpoint local;
    if (sys::getsockname(accepted, sa, &len) < 0 || !Endpoint::from_sockaddr(sa, len, local))
        return;
    if (first_time(g_published, local.port)) ShmPeers::publish(local.port);
    if (!local.addr.is_v4() || local.addr.is_loopback()) return;
    const uint32_t address = local.addr.v4_host();
    if (first_time(g_published_abroad, uint16_t(local.port ^ address ^ address >> 16)))
        ShmPeers::publish_abroad(local);
}

bool only_no_ring(Reason why) {
    switch (why) {
        case Reason::loopback:
        case Reason::no_route:
        case Reason::interface_unsupported:
        case Reason::capability:
        case Reason::ring_failed:
        case Reason::broker_gone:
        case Reason::broker_denied:
            return true;
        default:
            return false;
    }
}

// What keeps a connection of this host in the kernel although both ends are ours.
Reason TcpSocket::memory_forbidden() {
    if (Runtime::options().shm_after == 0) return Reason::loopback;
    Way way;
    const Reason why = find_way(fd(), remote_, way);
    if (why == Reason::loopback) {
        Reason none = Reason::none;
        if (space_ == nullptr) space_ = Runtime::namespace_of(fd(), &none);
        if (space_ == nullptr) return none;
        way.local = local_;
        way.path.ifindex = 1;  // of the loopback device
    } else if (why != Reason::none) {
        return why;
    }
    const Rules& rules = Runtime::snapshot().rules;
    if (!(accepted_ ? rules.decide(Role::tcp_server, local_)
                    : rules.decide(Role::tcp_client, remote_, &local_))
             .offload)
        return Reason::rule;
    return kernel_interferes(fd(), remote_, accepted_ ? Role::tcp_server : Role::tcp_client, way);
}

bool TcpSocket::read_names() {
    sockaddr_storage name{};
    auto* const sa = reinterpret_cast<sockaddr*>(&name);
    socklen_t len = sizeof name;
    if (sys::getsockname(fd(), sa, &len) < 0 || !Endpoint::from_sockaddr(sa, len, local_))
        return false;
    len = sizeof name;
    return sys::raw(SYS_getpeername, fd(), sys::ptr(sa), sys::ptr(&len)) == 0 &&
           Endpoint::from_sockaddr(sa, len, remote_);
}

// From now on no call blocks in the kernel, so that one can be called back: until cross_over().
bool TcpSocket::cross_begin(Cross how) {
    if (!cross_twin_.valid()) {
        if (!cross_twin_.adopt(duplicate_high(fd()))) return false;
    }
    if (!Epoll::watch_in_kernel(*this)) return false;
    RepairImage image;
    repair::save_options(fd(), image.options);
    take_options(fd(), image);
    crossing_ = new Crossing;
    crossing_->since = monotonic_now();
    cross_.store(how, std::memory_order_seq_cst);
    g_crossing.fetch_add(1, std::memory_order_relaxed);
    watch.notify();  // whoever waits here waits anew
    return true;
}

// It stays with the kernel, for now or for good.
void TcpSocket::cross_over() {
    const Cross was = cross_.exchange(Cross::none, std::memory_order_seq_cst);
    if (was == Cross::none) return;
    g_crossing.fetch_sub(1, std::memory_order_relaxed);
    delete std::exchange(crossing_, nullptr);
    Epoll::stay_in_kernel(*this);
    if (moving_.exchange(false, std::memory_order_seq_cst)) watch.notify();
    // Whoever accepted it may be asked again.
    if (accepted_ || adopt_after_.load(std::memory_order_relaxed) < 0) return;
    if (++cross_attempts_ >= kAttempts) return never_adopt();
    const uint64_t calls = uint64_t{Runtime::options().shm_after} << (3 * cross_attempts_);
    adopt_after_.store(int32_t(std::min<uint64_t>(calls, kOnRequest - 1)),
                       std::memory_order_relaxed);
}

// `why`: it has no ring.
Reason TcpSocket::cross_wanted(Reason why) {
    if (const Reason forbidden = memory_forbidden(); forbidden != Reason::none)
        return why == Reason::loopback ? forbidden : why;
    // Asked for by the other side, or from here on by ourselves.
    adopt_after_.store(kOnRequest, std::memory_order_relaxed);
    if (accepted_) {
        if (why != Reason::loopback) reason_.store(why, std::memory_order_relaxed);
        return Reason::undecided;
    }
    if (!totals(fd()).established || !cross_begin(Cross::wanted)) return why;
    crossing_->abroad = why != Reason::loopback;
    InternalThread::poke();
    return Reason::undecided;
}

void TcpSocket::cross_cancel() {
    // One that is in between is soon on one side. The internal thread would wait for itself.
    const Instant deadline = monotonic_now() + kPatience + kPatience;
    while (cross_.load(std::memory_order_acquire) == Cross::settling &&
           !InternalThread::is_current() && monotonic_now() < deadline) {
        const timespec nap{0, 50'000};
        sys::raw(SYS_nanosleep, sys::ptr(&nap), 0);
    }
    std::lock_guard guard(control_);
    if (cross_.load(std::memory_order_relaxed) != Cross::settling) cross_over();
}

// No call of this process is in the kernel with this socket, and none gets there.
bool TcpSocket::freeze() {
    moving_.store(true, std::memory_order_seq_cst);
    for (unsigned i = 0; i < 64; i++) {
        if (kernel_calls_.load(std::memory_order_seq_cst) == 0) return true;
        sys::raw(SYS_sched_yield);
    }
    moving_.store(false, std::memory_order_seq_cst);
    return false;
}

// All that the other side has written is kept for the program: `written` bytes of the connection. It is there or on its way,
// for which this makes room. False: the connection ends, or it is too much.
bool TcpSocket::drain_twin(uint64_t written) {
    const Instant deadline = monotonic_now() + kPatience;
    for (;;) {
        const bool all = totals(fd()).received >= written;
        const size_t at = crossing_->unread.size();
        if (at > kMostUnread) return false;
        constexpr size_t kPiece = 256 * 1024;
        crossing_->unread.resize(at + kPiece);
        const ssize_t n = sys::recvfrom(fd(), crossing_->unread.data() + at, kPiece, MSG_DONTWAIT,
                                        nullptr, nullptr);
        crossing_->unread.resize(at + size_t(std::max<ssize_t>(n, 0)));
        if (n > 0 || n == -EINTR) continue;
        if (n != -EAGAIN) return false;
        if (all) return true;
        if (monotonic_now() >= deadline) return false;
        pollfd more{fd(), POLLIN, 0};
        const timespec slice{0, 1'000'000};
        sys::ppoll(&more, 1, &slice);
    }
}

void TcpSocket::say(ShmWord word) {
    ShmMessage m = ShmMessage::about(word, {local_, remote_});
    m.seq = crossing_->seq;
    m.window = crossing_->window;
    m.written = totals(fd()).written;
    (void)ShmPeers::send(crossing_->peer, m);
}

void TcpSocket::choose_numbers() {
    crossing_->seq = uint32_t(monotonic_now().ns) * 2654435761u;
    crossing_->window =
        options_.rcvbuf ? std::min(uint32_t(options_.rcvbuf), kFirstWindow) : kFirstWindow;
}

// Too late to go back: bytes were taken out of the kernel, or the other side is in the ring already.
void TcpSocket::cross_broken() {
    vma_log(warning, "sock",
            "fd {}: the connection is reset: its other end did not follow it into "
            "shared memory",
            fd());
    reset_twin(fd());
    cross_over();
    never_adopt();
    watch.notify();
}

// It had committed, and the other side had given up by then.
void TcpSocket::refused_in_ring() {
    reset_twin(fd());
    const ConnectionLease lease(shard_);
    tcp::Actions actions;
    tcp::fail(connection_->tcb, ECONNRESET, actions);
    shard_->tcp().absorb(*connection_, actions, monotonic_now());
    shard_->tcp().flush(monotonic_now());
}

// ---- what the neighbour says

void TcpSocket::offered_by(ShmPeerId from) {
    const FlowTuple tuple{local_, remote_};
    const bool free = state() == SocketState::kernel && accepted_ && may_be_adopted() &&
                      cross_.load(std::memory_order_relaxed) == Cross::none;
    if (!free || memory_forbidden() != Reason::none || !totals(fd()).established ||
        !ShmPeers::owns(from, reversed(tuple)) || !cross_begin(Cross::invited)) {
        (void)ShmPeers::send(from, ShmMessage::about(ShmWord::refuse, tuple));
        return;
    }
    adopt_after_.store(kOnRequest, std::memory_order_relaxed);
    crossing_->peer = from;
    choose_numbers();
    accept_offer();
}

// As soon as nobody is in the kernel.
void TcpSocket::accept_offer() {
    if (!freeze()) {
        if (crossing_->since + kPatience > monotonic_now()) return;
        say(ShmWord::refuse);
        return cross_over();
    }
    if (!totals(fd()).established || !may_be_adopted() || !ShmPeers::prove(crossing_->peer, fd())) {
        say(ShmWord::refuse);
        return cross_over();
    }
    cross_.store(Cross::settling, std::memory_order_seq_cst);
    crossing_->since = monotonic_now();
    say(ShmWord::accept);
}

// The side that offered: the other one writes no more to the kernel.
void TcpSocket::accepted_by(ShmPeerId from, const ShmMessage& m) {
    const FlowTuple tuple{local_, remote_};
    if (cross_.load(std::memory_order_relaxed) != Cross::offered) {
        (void)ShmPeers::send(from, ShmMessage::about(ShmWord::refuse, tuple));
        return;
    }
    const bool ready = freeze() && totals(fd()).established && may_be_adopted();
    if (!ready || !ShmPeers::owns(from, reversed(tuple)) || !ShmPeers::prove(from, fd())) {
        (void)ShmPeers::send(from, ShmMessage::about(ShmWord::refuse, tuple));
        // Another one may have it.
        if (!ready || --crossing_->asked == 0) return cross_over();
        moving_.store(false, std::memory_order_seq_cst);
        watch.notify();
        return;
    }
    crossing_->peer = from;
    choose_numbers();
    cross_.store(Cross::settling, std::memory_order_seq_cst);
    crossing_->since = monotonic_now();
    if (!drain_twin(m.written)) {
        say(ShmWord::refuse);
        return cross_broken();
    }
    const ShmPeerId peer = crossing_->peer;
    ShmMessage done = ShmMessage::about(ShmWord::commit, tuple);
    done.seq = crossing_->seq;
    done.window = crossing_->window;
    done.written = totals(fd()).written;
    if (!enter_ring(m, true)) {
        say(ShmWord::refuse);
        return cross_broken();
    }
    done.text = text_tag();
    (void)ShmPeers::send(peer, done);
}

void TcpSocket::committed_by(ShmPeerId from, const ShmMessage& m) {
    const FlowTuple tuple{local_, remote_};
    if (cross_.load(std::memory_order_relaxed) != Cross::settling || crossing_->peer != from ||
        !drain_twin(m.written) || !enter_ring(m, false)) {
        ShmMessage gone = ShmMessage::about(ShmWord::back, tuple);
        gone.flags = ShmMessage::kGone;
        (void)ShmPeers::send(from, gone);
        if (cross_.load(std::memory_order_relaxed) == Cross::settling) cross_broken();
        return;
    }
    set_text_to(m.text);
    ShmMessage go = ShmMessage::about(ShmWord::go, tuple);
    go.text = text_tag();
    (void)ShmPeers::send(from, go);
}

uint32_t TcpSocket::text_tag() {
    const ConnectionLease lease(shard_);
    return connection_->text_tag;
}

void TcpSocket::set_text_to(uint32_t tag) {
    const ConnectionLease lease(shard_);
    TcpEngine::set_text_to(*connection_, tag);
}

// Into the ring; `theirs` has the other side's numbers.
bool TcpSocket::enter_ring(const ShmMessage& theirs, bool held) {
    const FlowTuple tuple{local_, remote_};
    shm::ShmRing* ring = nullptr;
    Shard* const shard = Runtime::shm_shard(&ring);
    if (shard == nullptr) return false;
    RepairImage image;
    repair::save_options(fd(), image.options);
    take_options(fd(), image);
    tcp::TcpConfig config = tcp_defaults(Runtime::options(), shard->caps(), shard->caps().mtu);
    apply_options(config);
    const auto unread = uint32_t(crossing_->unread.size());
    if (options_.rcvbuf == 0)
        config.receive_buffer =
            std::clamp(kFirstBuffer, config.receive_buffer, config.receive_buffer_max);
    config.receive_buffer = std::max(config.receive_buffer, unread + crossing_->window);
    tcp::Snapshot s;
    s.local = local_;
    s.remote = remote_;
    s.state = tcp::State::ESTABLISHED;
    s.passive = accepted_;
    s.snd_una = s.snd_nxt = s.snd_end = Seq{crossing_->seq};
    s.rcv_nxt = s.rcv_wup = Seq{theirs.seq};
    s.snd_wl1 = s.rcv_nxt - 1;
    s.unread = unread;
    s.snd_wnd = s.max_window = theirs.window;
    s.rcv_wnd = crossing_->window;
    s.peer_mss = kLargestSegment;
    s.scaling = true;
    s.snd_wscale = s.rcv_wscale = 7;
    // Text past the segments measures nothing: who asks is told what the kernel had seen.
    const Totals seen = totals(fd());
    s.srtt = seen.srtt;
    s.rttvar = seen.rttvar;
    s.cwnd = std::min(seen.cwnd, 1024u) * kLargestSegment;
    TcpPath path;
    path.resolved = true;
    path.ifindex = shard->ifindex();
    path.next_hop = remote_.addr;
    Epoll::watch_in_kernel(*this);  // memberships that came meanwhile
    LeaseGuard lease(shard->lease());
    if (!shard->tcp().take_flow(tuple, fd())) return false;
    const auto made =
        ShmPeers::route(crossing_->peer, tuple)
            ? shard->tcp().adopt(tuple, s, {}, {crossing_->unread.data(), unread}, config, path,
                                 space_->monitor(), this, monotonic_now())
            : Result<TcpConnection*>(Errno{EPIPE});
    if (!made) {
        shard->tcp().release_flow(tuple, monotonic_now());
        return false;
    }
    TcpConnection* const c = *made;
    c->neighbor = crossing_->peer;
    c->held = held;
    shard->tcp().open_text(*c);
    Epoll::leave_kernel(*this);
    connection_ = c;
    screen_connection();
    shard_ = shard;
    so_error_.store(0, std::memory_order_relaxed);
    read_shutdown_.store(false, std::memory_order_relaxed);
    write_shutdown_.store(false, std::memory_order_relaxed);
    connect_reported_ = bound_ = true;
    reason_.store(Reason::none, std::memory_order_relaxed);
    phase_.store(Phase::connected, std::memory_order_release);
    reopen_share();
    update_ready();
    // In this order: who finds it not crossing any more must not find it in the kernel.
    state_.store(SocketState::offloaded, std::memory_order_seq_cst);
    g_crossing.fetch_sub(1, std::memory_order_relaxed);
    delete std::exchange(crossing_, nullptr);
    cross_.store(Cross::none, std::memory_order_seq_cst);
    never_adopt();
    if (cross_twin_.fd() != fd()) cross_twin_.reset();  // nobody is in the kernel
    moving_.store(false, std::memory_order_seq_cst);
    publish_state();
    Xtreme::settle(*this, *shard);
    watch.notify();
    vma_log(debug, "sock", "fd {}: by shared memory from now on", fd());
    return true;
}

void TcpSocket::keep_twin() {
    std::lock_guard guard(control_);
    const bool in_ring = state() == SocketState::offloaded && connection_ && connection_->neighbor;
    if (!in_ring && !crossing()) return;
    if (cross_twin_.valid() || cross_twin_.adopt(duplicate_high(fd()))) set_fd(cross_twin_.fd());
}

bool TcpSocket::is_connection(const FlowTuple& tuple) {
    std::lock_guard guard(control_);
    if (state() == SocketState::kernel) {
        if (!may_be_adopted() || (remote_.port == 0 && !read_names())) return false;
    } else if (connection_ == nullptr) {
        return false;
    }
    return local_ == tuple.local && remote_ == tuple.remote;
}

void TcpSocket::shm_said(ShmPeerId from, const ShmMessage& m, int memory) {
    std::lock_guard guard(control_);
    const Cross now = cross_.load(std::memory_order_relaxed);
    const bool in_ring = state() == SocketState::offloaded && connection_ != nullptr &&
                         connection_->neighbor == from;
    switch (m.word) {
        case ShmWord::offer:
            return offered_by(from);
        case ShmWord::refuse:
            if (now == Cross::offered && --crossing_->asked == 0) return cross_over();
            if (in_ring && connection_->held) return refused_in_ring();
            if (now != Cross::settling || crossing_->peer != from) return;
            // An accept was refused: nothing has happened yet.
            if (crossing_->unread.empty()) return cross_over();
            return cross_broken();
        case ShmWord::accept:
            return accepted_by(from, m);
        case ShmWord::commit:
            return committed_by(from, m);
        case ShmWord::go:
            if (in_ring) {
                const ConnectionLease lease(shard_);
                TcpEngine::set_text_to(*connection_, m.text);
                if (connection_->held && !connection_->leaving)
                    shard_->tcp().release_hold(*connection_, monotonic_now());
            }
            return;
        case ShmWord::back:
            if (in_ring) (void)leave_ring(Reason::peer_left, &m, memory);
            return;
    }
}

void TcpSocket::cross_turn() {
    std::lock_guard guard(control_);
    const Cross now = cross_.load(std::memory_order_relaxed);
    if (now == Cross::none) return;
    const bool late = crossing_->since + kPatience < monotonic_now();
    switch (now) {
        case Cross::wanted: {
            if (late || state() != SocketState::kernel) return cross_over();
            ShmPeerId peers[ShmPeers::kMostSlots];
            unsigned count = 0;
            const auto found = crossing_->abroad ? ShmPeers::search_abroad(remote_, peers, &count)
                                                 : ShmPeers::search(remote_.port, peers, &count);
            if (found == ShmPeers::Search::nobody || space_->key() != ShmPeers::namespace_key())
                return cross_over();
            // A call that blocks there since before would wait for ever for what the other side says by memory.
            if (found == ShmPeers::Search::wait || kernel_calls_.load() != 0) return;
            if (crossing_->abroad) {
                if (!freeze()) return;
                count = unsigned(
                    std::remove_if(peers, peers + count,
                                   [&](ShmPeerId peer) { return !ShmPeers::show(peer, fd()); }) -
                    peers);
                moving_.store(false, std::memory_order_seq_cst);
                watch.notify();
                if (count == 0) return cross_over();
            }
            crossing_->asked = count;
            crossing_->since = monotonic_now();
            cross_.store(Cross::offered, std::memory_order_seq_cst);
            for (unsigned i = 0; i < count; i++)
                (void)ShmPeers::send(peers[i],
                                     ShmMessage::about(ShmWord::offer, {local_, remote_}));
            return;
        }
        case Cross::invited:
            return accept_offer();
        case Cross::offered:
            if (late) cross_over();
            return;
        case Cross::settling:
            if (!late) return;
            if (accepted_ && crossing_->unread.empty()) {
                // It may have committed just now, and is told that there is nobody.
                say(ShmWord::refuse);
                return cross_over();
            }
            return cross_broken();
        case Cross::none:
            return;
    }
}

void TcpSocket::shm_gone(ShmPeerId peer) {
    std::lock_guard guard(control_);
    if (crossing_ == nullptr || crossing_->peer != peer) return;
    if (cross_.load(std::memory_order_relaxed) == Cross::settling && !crossing_->unread.empty())
        return cross_broken();
    cross_over();
}

// ---- waits of a socket that may be called back

namespace {

class CalledBack final : public WaitTarget {
  public:
    CalledBack(TcpSocket& socket, uint32_t events) : socket_(socket), events_(events) {}
    bool ready(bool) override {
        if (!socket_.crossing()) return true;
        if (socket_.settling()) return false;
        pollfd look{socket_.crossing_twin(), short(events_), 0};
        const timespec zero{};
        return sys::ppoll(&look, 1, &zero) > 0;
    }
    void watch(Sleeper& sleeper) override { socket_.watch.add(sleeper); }
    void unwatch(Sleeper& sleeper) override { socket_.watch.remove(sleeper); }
    std::span<Shard* const> shards() override { return {}; }
    std::span<pollfd> kernel_fds() override {
        twin_ = {socket_.crossing_twin(), short(socket_.settling() ? 0 : events_), 0};
        return {&twin_, 1};
    }

  private:
    TcpSocket& socket_;
    const uint32_t events_;
    pollfd twin_{};
};

class Sink final : public ShmSink {
  public:
    void shm_message(ShmPeerId from, const ShmMessage& m, int memory) override {
        const FlowTuple tuple = m.tuple();
        bool found = false;
        for_each_own_socket([&](Socket& socket, int) {
            if (found || socket.kind != ObjectKind::tcp) return;
            auto& tcp = static_cast<TcpSocket&>(socket);
            if (&tcp == leaving_here() || !tcp.is_connection(tuple)) return;
            found = true;
            tcp.shm_said(from, m, memory);
        });
        if (found) return;
        if (m.word == ShmWord::go || m.word == ShmWord::refuse) return orphan_hears(from, tuple, m);
        ShmMessage answer = ShmMessage::about(ShmWord::refuse, tuple);
        if (m.word == ShmWord::offer || m.word == ShmWord::accept)
            return (void)ShmPeers::send(from, answer);
        if (m.word != ShmWord::back && m.word != ShmWord::commit) return;
        if (m.flags & ShmMessage::kGone) return;
        if (m.word == ShmWord::back && orphan_asked_back(from, m, memory)) return;
        answer.word = ShmWord::back;
        answer.flags = ShmMessage::kGone;
        (void)ShmPeers::send(from, answer);
    }
    void shm_gone(ShmPeerId peer) override {
        for_each_own_socket([&](Socket& socket, int) {
            if (socket.kind == ObjectKind::tcp) static_cast<TcpSocket&>(socket).shm_gone(peer);
        });
    }

  private:
    // Closed by the program, but not over.
    static void orphan_hears(ShmPeerId from, const FlowTuple& tuple, const ShmMessage& m) {
        shm::ShmRing* ring = nullptr;
        Shard* const shard = Runtime::shm_shard(&ring);
        if (shard == nullptr) return;
        LeaseGuard lease(shard->lease());
        TcpConnection* const c = shard->tcp().find(tuple);
        if (c == nullptr || c->neighbor != from || !c->held || c->leaving) return;
        if (m.word == ShmWord::go) return shard->tcp().release_hold(*c, monotonic_now());
        if (c->owner != nullptr) return;
        if (const int twin = held_port(c->orphan_token); twin >= 0) reset_twin(twin);
        shard->tcp().forget(*c, monotonic_now());
    }
};
Sink g_sink;

}  // namespace

bool TcpSocket::wait_in_kernel(uint32_t events, Duration timeout, Outcome* out) {
    CalledBack target(*this, events);
    switch (wait_until(target, read_governor_, Context::receive_limits(timeout))) {
        case WaitEnd::ready:
            return true;
        case WaitEnd::timeout:
            *out = Outcome::error(EAGAIN);
            return false;
        case WaitEnd::interrupted:
            break;
    }
    *out = interrupted_call(timeout);
    return false;
}

void cross_start() { ShmPeers::set_sink(&g_sink); }

void cross_tick() {
    if (g_crossing.load(std::memory_order_relaxed) == 0) return;
    for_each_own_socket([](Socket& socket, int) {
        if (socket.kind == ObjectKind::tcp) static_cast<TcpSocket&>(socket).cross_turn();
    });
}

void cross_forget_in_child() {
    g_crossing = 0;
    for (auto& word : g_published) word.store(0, std::memory_order_relaxed);
    for (auto& word : g_published_abroad) word.store(0, std::memory_order_relaxed);
}

}  // namespace vma::sock
