// A TCP socket as an object: life, readiness, news of its connection.
#include "sock/tcp_socket.h"

#include <poll.h>

#include <algorithm>
#include <new>

#include "sock/cross.h"
#include "sock/epoll.h"

namespace vma::sock {
namespace {

Slab<TcpSocket> g_slab;
struct ListenerFlows {
    // Raw: TcpSocket knows its type.
    alignas(16) unsigned char bytes[64 * 64];
};
Slab<ListenerFlows> g_flows_slab;

class Sink final : public TcpSink {
  public:
    void tcp_events(TcpConnection& connection, uint32_t events, int error) override {
        static_cast<TcpSocket*>(connection.owner)->on_events(events, error);
    }
    void tcp_acceptable(TcpListener& listener) override {
        static_cast<TcpSocket*>(listener.owner)->on_acceptable(listener);
    }
    void tcp_orphan_gone(uint64_t token) override { give_port(token); }
    int tcp_twin(void* owner) override { return static_cast<TcpSocket*>(owner)->fd(); }
};
Sink g_sink;

}  // namespace

TcpSink& tcp_sink() { return g_sink; }

TcpSocket* TcpSocket::create(int fd, int type, int protocol) {
    bool recycled;
    void* memory = g_slab.take(&recycled);
    if (memory == nullptr) return nullptr;
    const uint32_t generation = recycled ? static_cast<TcpSocket*>(memory)->generation + 1 : 1;
    return new (memory) TcpSocket(generation, fd, type, protocol);
}

void TcpSocket::destroy(TcpSocket* socket) {
    Epoll::forget_member(*socket);
    stats::remove_socket(socket->row_);
    socket->cross_twin_.reset();
    socket->latency.forget();
    delete socket->templates.exchange(nullptr);
    if (Handover* const handover = socket->handed_over()) Handover::destroy(handover);
    if (socket->steered_ != nullptr) g_flows_slab.give(socket->steered_);
    g_slab.give(socket);
}

bool TcpSocket::room_for_flow() {
    static_assert(sizeof(Steered) * kMaxKeys <= sizeof(ListenerFlows));
    static_assert(std::is_trivially_destructible_v<Steered>);
    if (steered_ == nullptr) {
        bool recycled;
        void* memory = g_flows_slab.take(&recycled);
        if (memory == nullptr) return false;
        steered_ = new (memory) Steered[kMaxKeys];
    }
    return steered_count_ < kMaxKeys;
}

void tcp_forget_in_child() {
    g_slab.forget_lock_in_child();
    g_flows_slab.forget_lock_in_child();
    tcp_close_forget_in_child();
    tcp_handover_forget_in_child();
    cross_forget_in_child();
    Handover::forget_in_child();
}

void TcpSocket::become_kernel(Reason why) {
    tell_served_by_kernel(why);
    reason_.store(why, std::memory_order_relaxed);
    state_.store(SocketState::kernel, std::memory_order_release);
    publish_state();
    TwinEvents::remove(fd());
    Epoll::move_to_kernel(*this, may_be_adopted());
    watch.notify();
}

void TcpSocket::become_twin_in_child() {
    share_.store(nullptr, std::memory_order_relaxed);  // the owner's
    counters.rx_kept.store(0, std::memory_order_relaxed);
    never_adopt();
    cross_.store(Cross::none, std::memory_order_relaxed);
    crossing_ = nullptr;
    moving_.store(false, std::memory_order_relaxed);
    kernel_calls_.store(0, std::memory_order_relaxed);
    const Phase phase = phase_.load(std::memory_order_relaxed);
    connection_ = nullptr;
    (void)shown_.detach();  // the parent's
    shard_ = nullptr;
    listeners_count_ = 0;
    steered_count_ = 0;
    space_ = nullptr;
    fading_ = false;
    if (phase == Phase::listening || phase == Phase::kernel_listener) {
        // Several processes may accept from it: the kernel's listener serves them all.
        phase_.store(Phase::kernel_listener, std::memory_order_relaxed);
        acceptable_.store(0, std::memory_order_relaxed);
        reason_.store(Reason::fork, std::memory_order_relaxed);
        state_.store(SocketState::kernel, std::memory_order_release);
        Epoll::move_to_kernel(*this, false);
    } else if (phase != Phase::fresh) {
        reason_.store(Reason::fork, std::memory_order_relaxed);
        state_.store(SocketState::kernel, std::memory_order_release);
        Epoll::move_to_kernel(*this, false);
    }
}

int TcpSocket::take_error() { return so_error_.exchange(0, std::memory_order_acq_rel); }

// The level bits of tcp(7)/poll(2) as Linux computes them, from the control block.
void TcpSocket::update_ready() {
    if (phase_.load(std::memory_order_relaxed) == Phase::fresh) {
        uint32_t more = 0;
        if (so_error_.load(std::memory_order_relaxed)) more |= EPOLLERR;
        if (shut_while_fresh_.load(std::memory_order_relaxed))
            more |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
        return ready_.store(EPOLLOUT | EPOLLWRNORM | EPOLLHUP | more, std::memory_order_release);
    }
    const tcp::Tcb& t = connection_->tcb;
    uint32_t events = 0;
    const bool closed = t.state == tcp::State::CLOSED || t.state == tcp::State::TIME_WAIT;
    const bool receive_done = (t.rcv.fin_done && !held_by_screen()) || t.read_shutdown || closed;
    const bool send_done = t.snd.fin_queued || closed;
    if ((receive_done && send_done) || t.state == tcp::State::CLOSED) events |= EPOLLHUP;
    if (receive_done) events |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
    if (t.state != tcp::State::SYN_SENT) {
        if (readable_bytes() >=
            uint32_t(std::max(1, receive_low_water_.load(std::memory_order_relaxed))))
            events |= EPOLLIN | EPOLLRDNORM;
        if (send_done || tcp::writable(t)) events |= EPOLLOUT | EPOLLWRNORM;
        if (t.rcv.urgent) events |= EPOLLPRI;
    }
    if (syn_held_.load(std::memory_order_relaxed)) events |= EPOLLOUT | EPOLLWRNORM;
    if (so_error_.load(std::memory_order_relaxed)) events |= EPOLLERR;
    ready_.store(events, std::memory_order_release);
}

uint32_t TcpSocket::twin_events() const {
    pollfd look{fd(), short(~(POLLERR | POLLHUP | POLLNVAL)), 0};
    const timespec zero{};
    return sys::ppoll(&look, 1, &zero) > 0 ? uint32_t(uint16_t(look.revents)) : 0;
}

void TcpSocket::on_events(uint32_t events, int error) {
    if (connection_ == nullptr) {
        // Told from inside connect(), before the connection is known here.
        if (events & tcp::kFailed) so_error_.store(error, std::memory_order_release);
        return;
    }
    if (events & tcp::kFailed) so_error_.store(error, std::memory_order_release);
    if (events & (tcp::kConnected | tcp::kFailed))
        phase_.store(Phase::connected, std::memory_order_release);
    const uint32_t before = ready_.load(std::memory_order_relaxed);
    if (held_by_screen()) [[unlikely]]
        Screens::add(*this);
    update_ready();
    const uint32_t after = ready_.load(std::memory_order_relaxed);
    // What Linux's wake-ups carry: data tells readers, a change of state everybody, the last acknowledgement only who lingers.
    constexpr uint32_t kData = tcp::kReadable | tcp::kUrgent;
    constexpr uint32_t kState =
        tcp::kConnected | tcp::kPeerClosed | tcp::kFailed | tcp::kReleasable | tcp::kTimeWait;
    uint32_t news = after & ~before;
    if (events & kData) news |= EPOLLIN | EPOLLPRI | EPOLLRDNORM | EPOLLRDBAND;
    if (events & kState) news = Watch::kAny;
    if (news || (events & tcp::kAllAcked)) watch.notify(news);
}

const char* TcpSocket::state_text() const {
    switch (phase_.load(std::memory_order_relaxed)) {
        case Phase::fresh:
            return "CLOSED";
        case Phase::kernel_listener:
        case Phase::listening:
            return "LISTEN";
        default:
            return connection_ ? tcp::state_name(connection_->tcb.state) : "CLOSED";
    }
}

}  // namespace vma::sock
