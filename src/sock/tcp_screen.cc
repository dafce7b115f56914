// The receive callback of a TCP socket: it is shown the text of a frame while nothing is readable, as in VMA.
#include "base/clock.h"
#include "sock/screen.h"
#include "sock/tcp_socket.h"

namespace vma::sock {

void TcpSocket::set_screen(const Screen& screen) {
    std::lock_guard guard(control_);
    screening.set(screen);
    if (connection_ == nullptr) return;
    const ConnectionLease lease(shard_);
    if (connection_ == nullptr) return;
    passing_ = false;
    update_ready();
    if (screening.on())
        Screens::add(*this);
    else
        watch.notify();
}

void TcpSocket::screen_connection() {
    passing_ = false;
    if (screening.on()) Screens::add(*this);
    stamp_connection();
}

bool TcpSocket::unscreened() {
    if (shard_ == nullptr) return false;
    const ConnectionLease lease(shard_);
    return something_to_show();
}

// The frame stays in the queue while the callback looks at it: a hand-back takes its text along, and a reset ends it. Its memory
// is the pool's and stays until the callback has answered.
Socket::Showing TcpSocket::show_one(AskProgram ask) {
    Shard* const shard = shard_;
    if (shard == nullptr) return Showing::nothing;
    ShownPacket shown{};
    tcp::RxText text;
    {
        LeaseGuard lease(shard->lease());
        if (!something_to_show()) return Showing::nothing;
        tcp::Tcb& t = connection_->tcb;
        if (t.in.front()->lender != nullptr) {
            Packet copy = shard->pool().copy_of(*t.in.front());
            if (!copy) return Showing::stuck;
            t.in.replace_front(std::move(copy));
        }
        t.in.hold_front(shown_);
        PacketBuf* const front = t.in.front();
        text = tcp::text_of(*front);
        shown.text = {front->data + text.offset, text.len};
        shown.id = KeptPackets::id_of(*front);
        shown.source = remote_;
        shown.destination = local_;
        shown.hw_time_ns = front->meta.hw_time_ns;
    }
    const Screen screen = screening.get();
    shown.fd = screen.fd;
    const ScreenAnswer answer = screen.show ? ask(screen, shown) : ScreenAnswer::queue;
    // A hand-over that is under way ends first.
    std::lock_guard guard(control_);
    LeaseGuard lease(shard->lease());
    shown_.reset();
    if (connection_ == nullptr || shard_ != shard || !connection_->tcb.in.let_go())
        return Showing::nothing;  // with the kernel, or read because there is no callback any more
    if (tcp::text_of(*connection_->tcb.in.front()).len != text.len)
        return Showing::nothing;  // read in part
    const Instant now = monotonic_now();
    tcp::Actions actions;
    switch (answer) {
        case ScreenAnswer::drop:
            tcp::consume(connection_->tcb, text.len, now, actions);
            break;
        case ScreenAnswer::keep:
            (void)keep(*shard, tcp::keep_front(connection_->tcb), text.len,
                       connection_->tcb.snd.iss);
            break;
        case ScreenAnswer::queue:
            passing_ = true;
            break;
    }
    shard->tcp().absorb(*connection_, actions, now);
    shard->tcp().pull(*connection_, now);
    shard->tcp().flush(now);
    update_ready();
    watch.notify(EPOLLIN | EPOLLRDNORM);
    return Showing::one;
}

}  // namespace vma::sock
