// Data path of a TCP socket.
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "sock/context.h"
#include "sock/kept.h"
#include "sock/message.h"
#include "sock/tcp_socket.h"

namespace vma::sock {
namespace {

// Iovecs with the first bytes already dealt with. Copies only the slice that a step needs.
class IovCursor {
  public:
    explicit IovCursor(const msghdr& msg) : iov_(msg.msg_iov), count_(msg.msg_iovlen) {}
    // Up to kStep iovecs of what is left, and `most` bytes.
    static constexpr unsigned kStep = 16;
    unsigned fill(iovec* out, size_t most = SIZE_MAX) const {
        unsigned n = 0;
        size_t offset = offset_;
        for (size_t i = at_; i < count_ && n < kStep && most > 0; i++) {
            if (iov_[i].iov_len > offset) {
                out[n] = {static_cast<char*>(iov_[i].iov_base) + offset,
                          std::min(iov_[i].iov_len - offset, most)};
                most -= out[n++].iov_len;
            }
            offset = 0;
        }
        return n;
    }
    void advance(size_t n) {
        while (n > 0 && at_ < count_) {
            const size_t here = std::min(n, iov_[at_].iov_len - offset_);
            offset_ += here;
            n -= here;
            if (offset_ == iov_[at_].iov_len) {
                at_++;
                offset_ = 0;
            }
        }
    }

  private:
    const iovec* iov_;
    size_t count_, at_ = 0, offset_ = 0;
};

// Linux looks at SOL_SOCKET's control messages of a stream, and takes those that have a meaning to it (sock_cmsg_send).
bool good_controls(const msghdr& msg) {
    auto& m = const_cast<msghdr&>(msg);
    const auto* const end = static_cast<const uint8_t*>(msg.msg_control) + msg.msg_controllen;
    for (const cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, const_cast<cmsghdr*>(c))) {
        const size_t room = size_t(end - reinterpret_cast<const uint8_t*>(c));
        if (c->cmsg_len < sizeof *c || c->cmsg_len > room) return false;
        if (c->cmsg_level != SOL_SOCKET) continue;
        switch (c->cmsg_type) {
            case SCM_RIGHTS:
            case SCM_CREDENTIALS:
                break;
            case SO_MARK:
            case SO_PRIORITY:
            case SO_TIMESTAMPING:
                if (c->cmsg_len != CMSG_LEN(sizeof(int))) return false;
                break;
            default:
                return false;
        }
    }
    return true;
}

// send(2): a connection that cannot be written to any more raises SIGPIPE in the calling thread.
Outcome broken_pipe(int flags) {
    if (!(flags & MSG_NOSIGNAL)) sys::raw(SYS_tgkill, sys::getpid(), sys::gettid(), SIGPIPE);
    return Outcome::error(EPIPE);
}

}  // namespace

// One direction of a call that may wait. `step` runs under the lease and returns true when the call is over.
class TcpTransfer final : public WaitTarget {
  public:
    explicit TcpTransfer(TcpSocket& socket) : socket_(socket) {}
    void watch(Sleeper& sleeper) override { socket_.watch.add(sleeper); }
    void unwatch(Sleeper& sleeper) override { socket_.watch.remove(sleeper); }
    std::span<Shard* const> shards() override {
        waits_at_ = socket_.shard_;
        return {&waits_at_, 1};
    }
    void progress() override {}

    // ---- receive
    struct Receive {
        msghdr* msg;
        IovCursor cursor;
        int flags;
        size_t wanted, low_water, done = 0;
        Taker* taker = nullptr;
    };
    // ---- send
    struct Send {
        IovCursor cursor;
        int flags;
        size_t wanted, done = 0;
        bool cork = false;
        size_t by_syn = 0;  // of `done`, carried by the SYN: nothing until the connection is there
        Instant called;     // while latencies are asked for
    };
    Receive* receive = nullptr;
    Send* send = nullptr;
    Outcome outcome = Outcome::error(EAGAIN);

    bool ready(bool) override {
        const ConnectionLease lease(socket_.shard_);
        shard_ = &lease.shard();
        if (socket_.connection_ != nullptr && socket_.connection_->leaving) return false;
        if (socket_.connection_ == nullptr) {
            if (socket_.state() ==
                SocketState::kernel) {  // handed back meanwhile: the rest is the twin's
                outcome = Outcome::kernel();
                return true;
            }
            // another thread connects anew
            outcome = Outcome::error(receive ? ENOTCONN : EPIPE);
            return true;
        }
        return receive ? step_receive() : step_send();
    }

  private:
    tcp::Tcb& tcb() { return socket_.connection_->tcb; }

    bool step_receive() {
        Receive& r = *receive;
        TcpEngine& engine = shard_->tcp();
        if (socket_.readable_bytes() < r.low_water - std::min(r.done, r.low_water)) shard_->poll();
        if (r.taker && socket_.readable_bytes() > 0 && take_frames()) return true;
        // What one packet brought, and no more.
        if (socket_.reads_messages() && r.done == 0 && socket_.readable_bytes() > 0)
            r.wanted = std::min<size_t>(r.wanted, tcp::text_of(*tcb().in.front()).len);
        Instant now{};
        while (r.done < r.wanted && socket_.readable_bytes() > 0) {
            if (now.ns == 0) now = monotonic_now();
            iovec step[IovCursor::kStep];
            size_t n = 0;
            tcp::Actions actions;
            if (r.flags & MSG_PEEK) {
                const unsigned count = r.cursor.fill(step, r.wanted - r.done);
                n = r.flags & MSG_TRUNC  // counts, and copies nothing
                        ? std::min<size_t>(tcp::unread_bytes(tcb()) - r.done, r.wanted - r.done)
                        : tcp::peek(tcb(), step, count, r.done);
                if (n == 0) break;
            } else if (r.flags & MSG_TRUNC) {
                n = std::min<size_t>(tcp::unread_bytes(tcb()), r.wanted - r.done);
                tcp::consume(tcb(), uint32_t(n), now, actions);
            } else {
                const unsigned count = r.cursor.fill(step, r.wanted - r.done);
                n = tcp::read(tcb(), step, count, now, actions);
            }
            r.cursor.advance(n);
            r.done += n;
            if (actions.events || actions.has_reply)
                engine.absorb(*socket_.connection_, actions, now);
        }
        if (now.ns) {
            // The reader made room: if a window update is due, absorb() has said so.
            if (!(r.flags & MSG_PEEK)) engine.flush(now);
            socket_.note_read();
            socket_.update_ready();
        }
        // No byte wanted: Linux waits for one all the same, and leaves it.
        const bool enough = r.wanted == 0
                                ? socket_.readable_bytes() > 0
                                : r.done >= r.wanted || (r.done > 0 && r.done >= r.low_water);
        if (enough) return finish_receive();
        if (socket_.held_by_screen()) return false;
        if (tcb().rcv.fin_done || tcb().read_shutdown || tcb().state == tcp::State::CLOSED ||
            tcb().state == tcp::State::TIME_WAIT) {
            if (r.done > 0) return finish_receive();
            if (const int error = socket_.take_error()) {
                socket_.update_ready();
                outcome = Outcome::error(error);
                return true;
            }
            outcome = Outcome::value(0);
            return true;
        }
        if (tcb().state == tcp::State::SYN_SENT && socket_.nonblocking() && r.done == 0)
            return false;
        return false;
    }
    // Frames instead of bytes, as many as there is room for. False: not possible now.
    bool take_frames() {
        Receive& r = *receive;
        if (!r.taker->room()) {
            outcome = Outcome::error(ENOBUFS);
            return true;
        }
        while (r.taker->room()) {
            Packet frame = socket_.keep_frame();
            if (!frame) break;
            const tcp::RxText text = tcp::text_of(*frame);
            const iovec bytes{frame->data + text.offset, text.len};
            r.taker->put(socket_.keep(*shard_, std::move(frame), text.len, tcb().snd.iss), bytes);
            r.done += text.len;
        }
        if (r.done == 0) {
            outcome = Outcome::error(EIO);
            return r.taker->must();
        }
        socket_.note_read();
        socket_.update_ready();
        return finish_receive();
    }
    bool finish_receive() {
        Receive& r = *receive;
        socket_.note_received(r.done, r.flags & MSG_PEEK);
        outcome = Outcome::value(long(r.done));
        return true;
    }

    bool step_send() {
        Send& s = *send;
        TcpEngine& engine = shard_->tcp();
        tcp::Tcb& t = tcb();
        if (t.state == tcp::State::SYN_SENT || t.state == tcp::State::SYN_RECEIVED) {
            shard_->poll();
            if (t.state == tcp::State::SYN_SENT) return false;
        }
        if (!t.can_send()) {
            if (s.done > s.by_syn) return finish_send();
            if (const int error = socket_.take_error()) {
                socket_.update_ready();
                outcome = Outcome::error(error);
                return true;
            }
            outcome = Outcome::error(EPIPE);
            return true;
        }
        const Instant now = monotonic_now();
        t.cfg.cork = s.cork;
        if (t.out.room() == 0 || socket_.options_.poll_on_send) shard_->poll();
        const bool direct = socket_.connection_->text_to != 0 && !(s.flags & (MSG_OOB | MSG_MORE));
        bool any = false;
        while (s.done < s.wanted && t.can_send()) {
            iovec step[IovCursor::kStep];
            const unsigned count = s.cursor.fill(step);
            if (const size_t n = direct ? engine.send_text(*socket_.connection_, step, count,
                                                           count < IovCursor::kStep, now)
                                        : 0) {
                s.cursor.advance(n);
                s.done += n;
                continue;
            }
            tcp::Actions actions;
            const size_t n = tcp::write(t, step, count, now, actions);
            if (n == 0) break;
            any = true;
            s.cursor.advance(n);
            s.done += n;
            if (s.done == s.wanted && (s.flags & MSG_OOB)) tcp::mark_urgent(t);
            if (s.done == s.wanted && !(s.flags & MSG_MORE)) tcp::end_message(t);
            engine.absorb(*socket_.connection_, actions, now);
            // Between pieces of a large send: what the window allows goes out, acknowledgements come in.
            engine.pull(*socket_.connection_, now);
            if (s.done < s.wanted) shard_->poll();
        }
        if (any) {
            engine.pull(*socket_.connection_, now);
            engine.flush(now);
            socket_.update_ready();
        }
        if (s.done == s.wanted) return finish_send();
        return false;
    }
    bool finish_send() {
        Send& s = *send;
        SocketCounters::add(socket_.counters.tx_packets, 1);
        SocketCounters::add(socket_.counters.tx_bytes, s.done);
        if (LatencyProbe* probe = socket_.latency.probe(); probe && s.called.ns != 0) [[unlikely]]
            probe->sent(s.called);
        outcome = Outcome::value(long(s.done));
        return true;
    }

    TcpSocket& socket_;
    Shard* shard_ = nullptr;  // [its lease]
    Shard* waits_at_ = nullptr;
};

namespace {

// A call that had moved bytes here when its connection went to the kernel ends there. `cursor`: what is left of its memory.
Outcome end_in_kernel(int fd, IovCursor& cursor, size_t done, size_t wanted, int flags,
                      bool sending) {
    while (done < wanted) {
        iovec step[IovCursor::kStep];
        msghdr msg{};
        msg.msg_iov = step;
        msg.msg_iovlen = cursor.fill(step);
        const ssize_t n =
            sending ? sys::sendmsg(fd, &msg, flags | MSG_NOSIGNAL) : sys::recvmsg(fd, &msg, flags);
        if (n <= 0) break;
        cursor.advance(size_t(n));
        done += size_t(n);
    }
    return Outcome::value(long(done));
}

}  // namespace

bool TcpSocket::in_kernel(Outcome* out) {
    if (state() != SocketState::kernel) return false;
    *out = Outcome::kernel();
    if (!may_be_adopted()) return true;
    if (!pin_in_kernel()) return false;
    refs.fetch_add(1, std::memory_order_relaxed);
    *out = Outcome::kernel_pinned(static_cast<Object*>(this));
    return true;
}

// A blocking receive whose connection may be called back: it waits beside the kernel. True: *out is the answer.
bool TcpSocket::receive_while_crossing(msghdr* msg, int flags, Outcome* out) {
    size_t wanted;
    if (!total_length(*msg, wanted)) return false;
    while (crossing()) {
        if (!wait_in_kernel(EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR, receive_timeout(), out))
            return true;
        if (!crossing() || !pin_in_kernel()) return false;
        const ssize_t n = sys::recvmsg(cross_twin_.fd(), msg, flags | MSG_DONTWAIT);
        unpin_in_kernel();
        if (n == -EAGAIN || n == -EINTR) continue;
        *out = n < 0 ? Outcome::error(int(-n)) : Outcome::value(n);
        return true;
    }
    return false;
}

// A blocking send whose connection may be called back: in steps, none of which waits in the kernel. True: *out is the answer.
// Else the connection is not on its way any more, and *sent bytes are gone.
bool TcpSocket::send_while_crossing(const msghdr* msg, int flags, size_t* sent, Outcome* out) {
    size_t wanted;
    if (!total_length(*msg, wanted)) return false;
    IovCursor cursor(*msg);
    while (crossing()) {
        if (!wait_in_kernel(EPOLLOUT | EPOLLHUP | EPOLLERR,
                            Duration{sndtimeo_ns_.load(std::memory_order_relaxed)}, out)) {
            if (*sent > 0) *out = Outcome::value(long(*sent));
            return true;
        }
        if (!crossing()) return false;
        if (!pin_in_kernel()) return false;
        iovec step[IovCursor::kStep];
        msghdr part = *msg;
        part.msg_iov = step;
        part.msg_iovlen = cursor.fill(step);
        const ssize_t n = sys::sendmsg(cross_twin_.fd(), &part, flags | MSG_DONTWAIT);
        unpin_in_kernel();
        if (n == -EAGAIN || n == -EINTR) continue;
        if (n < 0) {
            *out = *sent > 0 ? Outcome::value(long(*sent)) : Outcome::error(int(-n));
            return true;
        }
        cursor.advance(size_t(n));
        *sent += size_t(n);
        if (*sent >= wanted) {
            *out = Outcome::value(long(*sent));
            return true;
        }
    }
    return false;
}

void TcpSocket::note_received(size_t bytes, bool peeked) {
    SocketCounters::add(counters.rx_packets, 1);
    SocketCounters::add(counters.rx_bytes, bytes);
    if (LatencyProbe* probe = latency.probe(); probe && !peeked) [[unlikely]]
        probe->received(connection_->tcb.ack.last_data);
}

// [lease] The next unread frame, in memory that stays where it is; empty: there is none, or no memory.
Packet TcpSocket::keep_frame() {
    tcp::Tcb& t = connection_->tcb;
    PacketBuf* const front = t.in.front();
    if (front == nullptr) return {};
    if (front->lender == nullptr) return tcp::keep_front(t);
    Packet copy = shard_->pool().copy_of(*front);
    if (copy) (void)tcp::keep_front(t);
    return copy;
}

void TcpSocket::kept_returned(Shard& shard, const Kept& kept) {
    // Of a connection before this one, or one that has gone to the kernel: nothing waits for it.
    if (connection_ == nullptr || static_cast<Shard*>(shard_) != &shard ||
        !(connection_->tcb.snd.iss == kept.connection))
        return;
    const Instant now = monotonic_now();
    tcp::Actions actions;
    tcp::kept_returned(connection_->tcb, kept.charge, now, actions);
    shard.tcp().absorb(*connection_, actions, now);
    shard.tcp().pull(*connection_, now);
    shard.tcp().flush(now);
}

Outcome TcpSocket::receive(int fd, msghdr* msg, int flags, Taker* taker) {
    if (state() == SocketState::kernel) {
        if (taker && taker->must()) return Outcome::error(EIO);
        if (adoption_due()) (void)adopt(fd);
        if (crossing() && !nonblocking() &&
            !(flags & (MSG_DONTWAIT | MSG_ERRQUEUE | MSG_OOB | MSG_WAITALL)))
            if (Outcome over; receive_while_crossing(msg, flags, &over)) return over;
        if (Outcome kernel; in_kernel(&kernel)) return kernel;
    }
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (flags & MSG_ERRQUEUE) return Outcome::error(EAGAIN);
    if ((flags & MSG_OOB) && phase == Phase::fresh) return Outcome::error(EINVAL);
    if (phase == Phase::fresh || phase == Phase::kernel_listener || phase == Phase::listening) {
        const int error = take_error();
        return Outcome::error(error ? error : ENOTCONN);
    }
    if (flags & MSG_OOB) return Outcome::error(EINVAL);
    if (rings.follows(SocketRings::kReceive)) [[unlikely]]
        follow_user(SocketRings::kReceive);
    (void)fd;
    size_t wanted;
    if (!total_length(*msg, wanted)) return Outcome::error(EINVAL);
    msg->msg_namelen = 0;
    msg->msg_controllen = 0;
    msg->msg_flags = 0;
    const auto low = size_t(std::max(1, receive_low_water_.load(std::memory_order_relaxed)));
    TcpTransfer transfer(*this);
    TcpTransfer::Receive r{msg, IovCursor(*msg), flags, wanted, 0};
    r.low_water = std::max<size_t>(1, flags & MSG_WAITALL ? wanted : std::min(low, wanted));
    if (!(flags & MSG_PEEK)) r.taker = taker;
    transfer.receive = &r;
    const auto answer = [&] {
        return transfer.outcome.kind == Outcome::Kind::kernel && r.done > 0
                   ? flags & MSG_PEEK ? Outcome::value(long(r.done))
                                      : end_in_kernel(fd, r.cursor, r.done, wanted, flags, false)
                   : transfer.outcome;
    };
    if (transfer.ready(false)) return answer();
    if (Screens::run() && transfer.ready(false)) return answer();
    const bool may_wait = !nonblocking() && !(flags & MSG_DONTWAIT);
    auto partial = [&](int error) {
        if (r.done > 0) {
            SocketCounters::add(counters.rx_bytes, r.done);
            return Outcome::value(long(r.done));
        }
        return Outcome::error(error);
    };
    if (!may_wait) {
        SocketCounters::add(counters.rx_eagain, 1);
        return partial(EAGAIN);
    }
    const Duration timeout = receive_timeout();
    switch (wait_until(transfer, read_governor_, Context::receive_limits(timeout))) {
        case WaitEnd::ready:
            return answer();
        case WaitEnd::timeout:
            return partial(EAGAIN);
        case WaitEnd::interrupted:
            break;
    }
    return r.done > 0 ? partial(EINTR) : interrupted_call(timeout);
}

// Everything that a send of one segment does but for the ring, so that caches are warm when it matters.
Outcome TcpSocket::rehearse(const msghdr* msg, int flags) {
    if (state() != SocketState::offloaded) return Outcome::error(EINVAL);
    if (shard_ == nullptr || msg->msg_iovlen != 1 || (flags & MSG_MORE))
        return Outcome::error(EAGAIN);
    const ConnectionLease lease(shard_);
    if (connection_ == nullptr || connection_->held || connection_->leaving ||
        !shard_->tcp().rehearse(*connection_, msg->msg_iov[0]))
        return Outcome::error(EAGAIN);
    SocketCounters::add(counters.tx_dummy, 1);
    return Outcome::value(long(msg->msg_iov[0].iov_len));
}

// What send() does when there is room for all of it.
size_t TcpSocket::fire(int, SendTemplate& t) {
    if (state() != SocketState::offloaded || shard_ == nullptr || options_.poll_on_send ||
        syn_held_.load(std::memory_order_acquire))
        return 0;
    if (rings.follows(SocketRings::kSend)) [[unlikely]]
        follow_user(SocketRings::kSend);
    LatencyProbe* const probe = latency.probe();
    const Instant now = monotonic_now();
    const ConnectionLease lease(shard_);
    if (connection_ == nullptr || connection_->held || connection_->leaving) return 0;
    tcp::Tcb& tcb = connection_->tcb;
    if (!tcb.can_send() || tcb.out.room() < t.size) return 0;
    tcb.cfg.cork = options_.cork;
    const iovec text{t.bytes.get(), t.size};
    tcp::Actions actions;
    const size_t n = tcp::write(tcb, &text, 1, now, actions);
    if (n == 0) return 0;
    tcp::end_message(tcb);
    TcpEngine& engine = shard_->tcp();
    engine.absorb(*connection_, actions, now);
    engine.pull(*connection_, now);
    engine.flush(now);
    update_ready();
    SocketCounters::add(counters.tx_packets, 1);
    SocketCounters::add(counters.tx_bytes, n);
    if (probe) [[unlikely]]
        probe->sent(now);
    return n;
}

void TcpSocket::warm_up() {
    char byte = 0;
    iovec text{&byte, 1};
    msghdr msg{};
    msg.msg_iov = &text;
    msg.msg_iovlen = 1;
    (void)rehearse(&msg, 0);
}

Outcome TcpSocket::send(int fd, const msghdr* msg, int flags) {
    if (flags & kSendDummy) return rehearse(msg, flags);
    size_t in_between = 0;  // sent to the kernel before the connection went into the shm ring
    if (state() == SocketState::kernel) {
        if (adoption_due()) (void)adopt(fd);
        // The mark of urgent text would be lost on the way into the ring.
        if ((flags & MSG_OOB) && may_be_adopted()) (void)hand_back(Reason::unsupported_option);
        if (crossing() && !nonblocking() && !(flags & MSG_DONTWAIT))
            if (Outcome over; send_while_crossing(msg, flags, &in_between, &over)) return over;
        if (in_between == 0)
            if (Outcome kernel; in_kernel(&kernel)) return kernel;
    }
    size_t wanted, by_syn = in_between;
    if (!total_length(*msg, wanted)) return Outcome::error(EINVAL);
    if (in_between > 0 && state() == SocketState::kernel) {
        IovCursor rest(*msg);
        rest.advance(in_between);
        return end_in_kernel(this->fd(), rest, in_between, wanted, flags, true);
    }
    if ((flags & MSG_FASTOPEN) || syn_held_.load(std::memory_order_acquire)) {
        if (Outcome early = Outcome::value(0); send_fast(fd, msg, flags, &by_syn, &early))
            return early;
        flags &= ~MSG_FASTOPEN;
    }
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::fresh || phase == Phase::kernel_listener || phase == Phase::listening) {
        if (const int error = take_error()) return Outcome::error(error);
        return broken_pipe(flags);
    }
    if (msg->msg_controllen && msg->msg_control && !good_controls(*msg))
        return Outcome::error(EINVAL);
    if (rings.follows(SocketRings::kSend)) [[unlikely]]
        follow_user(SocketRings::kSend);
    TcpTransfer transfer(*this);
    TcpTransfer::Send s{IovCursor(*msg), flags, wanted, 0, false, 0, {}};
    s.cursor.advance(by_syn);
    s.done = by_syn;
    s.by_syn = by_syn - in_between;
    transfer.send = &s;
    s.cork = (flags & MSG_MORE) || options_.cork;
    if (latency.probe()) [[unlikely]]
        s.called = monotonic_now();
    const auto answer = [&] {
        if (transfer.outcome.kind == Outcome::Kind::kernel && s.done > 0)
            return end_in_kernel(fd, s.cursor, s.done, wanted, flags, true);
        return transfer.outcome.kind == Outcome::Kind::error && transfer.outcome.v == EPIPE
                   ? broken_pipe(flags)
                   : transfer.outcome;
    };
    if (transfer.ready(false)) return answer();
    const bool may_wait = !nonblocking() && !(flags & MSG_DONTWAIT);
    auto partial = [&](int error) {
        if (s.done > 0) {
            SocketCounters::add(counters.tx_bytes, s.done);
            return Outcome::value(long(s.done));
        }
        return Outcome::error(error);
    };
    if (!may_wait) {
        SocketCounters::add(counters.tx_eagain, 1);
        return partial(EAGAIN);
    }
    const Duration timeout{sndtimeo_ns_.load(std::memory_order_relaxed)};
    switch (wait_until(transfer, write_governor_, Context::receive_limits(timeout))) {
        case WaitEnd::ready:
            return answer();
        case WaitEnd::timeout:
            return partial(EAGAIN);
        case WaitEnd::interrupted:
            break;
    }
    return s.done > 0 ? partial(EINTR) : interrupted_call(timeout);
}

Outcome TcpSocket::ioctl(int fd, unsigned long request, void* arg) {
    if (request == FIONBIO) {
        const int result = sys::ioctl(fd, request, arg);
        if (result < 0) return Outcome::error(-result);
        set_nonblocking(*static_cast<int*>(arg) != 0);
        return Outcome::value(result);
    }
    if (Outcome kernel; in_kernel(&kernel)) return kernel;
    int* const out = static_cast<int*>(arg);
    switch (request) {
        case FIONREAD:
        case SIOCOUTQ:
        case SIOCOUTQNSD: {
            if (connection_ == nullptr) return Outcome::kernel();
            const ConnectionLease lease(shard_);
            if (connection_ == nullptr) return Outcome::kernel();
            if (request == FIONREAD) {
                shard_->poll();
                *out = int(readable_bytes());
            } else {
                *out = int(request == SIOCOUTQ ? tcp::unacked_bytes(connection_->tcb)
                                               : tcp::unsent_bytes(connection_->tcb));
            }
            return Outcome::value(0);
        }
        default:
            return Outcome::kernel();
    }
}

}  // namespace vma::sock
