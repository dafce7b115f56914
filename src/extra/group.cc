#include "extra/group.h"

#include <errno.h>
#include <sys/epoll.h>

#include <new>

#include "extra/boundary.h"
#include "extra/group_calls.h"
#include "extra/group_memory.h"
#include "sock/slab.h"
#include "sock/using.h"

namespace vma::extra::group {
namespace {

constinit sock::Slab<GroupSocket> g_sockets;

constexpr int kEvents = 64;      // of one look
constexpr unsigned kRounds = 8;  // that one socket gets before it is the turn of the others

// An errno value as one of those that XLIO_SOCKET_EVENT_ERROR has.
int told_error(int error) {
    switch (error) {
        case ECONNRESET:
        case ECONNREFUSED:
        case ETIMEDOUT:
            return error;
        case EPIPE:
            return ECONNRESET;
        case EHOSTUNREACH:
        case ENETUNREACH:
            return ETIMEDOUT;
        default:
            return ECONNABORTED;
    }
}

// Packets that a ring has for a socket.
class Packets final : public sock::Completions {
  public:
    // Where the rest is: here, with the calls that everybody makes, or nowhere.
    enum class Rest : uint8_t { here, usual_calls, none };

    bool room() const override { return count_ < kMost; }
    void put(const sock::Socket&, const sock::Completion& done) override {
        first_[count_++] = done.pieces;
    }
    unsigned count() const { return count_; }
    PacketPiece* operator[](unsigned i) const { return first_[i]; }

    Rest take_from(int fd) {
        Rest rest = Rest::usual_calls;
        (void)ask_library([&] {
            const sock::Using object{fd};
            sock::TcpSocket* const tcp = object.tcp();
            if (tcp == nullptr || tcp->state() != sock::SocketState::offloaded) return 0;
            const bool all = tcp->complete(*this);
            const uint32_t events = tcp->poll_events();
            if (!all)
                rest = Rest::here;
            else if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0)
                rest = events & EPOLLIN ? Rest::here : Rest::none;
            return 0;
        });
        return rest;
    }

  private:
    static constexpr unsigned kMost = 16;
    PacketPiece* first_[kMost];
    unsigned count_ = 0;
};

}  // namespace

GroupSocket* GroupSocket::make(int fd) {
    bool recycled;
    void* const memory = g_sockets.take(&recycled);
    if (memory == nullptr) return nullptr;
    auto* const socket = new (memory) GroupSocket;
    socket->fd = fd;
    return socket;
}

void GroupSocket::give(GroupSocket* socket) { g_sockets.give(socket); }

void Group::add(GroupSocket& socket) {
    socket.group = this;
    members_.push_back(socket);
    if (socket.queue.empty()) return;
    const Guard guard(*this);
    sending_.push_back(socket);
    if (!socket.queue.all_written() && !socket.flushing) dirty_.push_back(socket);
}

bool Group::watch(GroupSocket& socket) {
    // Edges: a socket that has more than was taken stays in ready_.
    constexpr uint32_t kEdges = EPOLLIN | EPOLLRDHUP | EPOLLOUT | EPOLLET;
    return calls::epoll_control(set_, EPOLL_CTL_ADD, socket.fd, kEdges, &socket) == 0;
}

void Group::remove(GroupSocket& socket) {
    const int before = errno;
    if (socket.stage != Stage::idle)
        (void)calls::epoll_control(set_, EPOLL_CTL_DEL, socket.fd, 0, nullptr);
    errno = before;
    const Guard guard(*this);
    socket.member_hook.unlink();
    socket.ready_hook.unlink();
    socket.sending_hook.unlink();
    socket.dirty_hook.unlink();
    socket.leaving_hook.unlink();
    socket.group = nullptr;
}

void Group::leave(GroupSocket& socket) {
    if (socket.leaving) return;
    socket.leaving = true;
    leaving_.push_back(socket);
    if (socket.stage == Stage::open) flush(socket);
}

void Group::fail_later(GroupSocket& socket, int error) {
    socket.failure.store(error, std::memory_order_relaxed);
    ready(socket);
}

bool Group::end() {
    if (polling_) return false;
    polling_ = true;
    while (GroupSocket* const socket = members_.front()) {
        // Its peer must not take a part of the stream for all of it.
        if (socket->stage == Stage::open && !socket->queue.all_written()) {
            const linger at_once{1, 0};
            (void)calls::setsockopt(socket->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        }
        terminate(*socket);
    }
    calls::close(set_);
    return true;
}

void Group::poll() {
    if (polling_) return;
    polling_ = true;
    const int before = errno;
    epoll_event events[kEvents];
    const int count = calls::epoll_look(set_, events, kEvents);
    for (int i = 0; i < count; i++) {
        auto& socket = *static_cast<GroupSocket*>(events[i].data.ptr);
        socket.events |= events[i].events;
        ready(socket);
    }
    Ready now;
    now.splice_back(ready_);
    while (GroupSocket* const socket = now.pop_front()) serve(*socket);
    finish_sends();
    end_leaving();
    errno = before;
    polling_ = false;
}

void Group::serve(GroupSocket& socket) {
    if (socket.stage == Stage::failed) return;
    if (const int error = socket.failure.load(std::memory_order_relaxed))
        return fail(socket, error);
    switch (socket.stage) {
        case Stage::connecting:
            return finish_connecting(socket);
        case Stage::listening:
            return accept_all(socket);
        case Stage::open:
            return receive(socket);
        case Stage::idle:
        case Stage::failed:
            return;
    }
}

void Group::finish_connecting(GroupSocket& socket) {
    if ((socket.events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
    if (const int error = calls::pending_error(socket.fd)) return fail(socket, error);
    if (socket.events & EPOLLHUP) return fail(socket, ECONNABORTED);
    socket.stage = Stage::open;
    if (!socket.leaving) tell(socket, XLIO_SOCKET_EVENT_ESTABLISHED);
    receive(socket);
}

void Group::accept_all(GroupSocket& listener) {
    for (unsigned i = 0; i < unsigned(kEvents) && !listener.leaving; i++) {
        const int fd = calls::accept(listener.fd);
        if (fd < 0 && (errno == ECONNABORTED || errno == EINTR)) continue;
        if (fd < 0 && errno == EAGAIN) return;
        if (fd < 0) break;  // for want of descriptors or memory, which others may give back
        GroupSocket* const child = GroupSocket::make(fd);
        if (child == nullptr) {
            calls::close(fd);
            break;
        }
        child->stage = Stage::open;
        add(*child);
        if (!watch(*child)) {
            remove(*child);
            calls::close(fd);
            GroupSocket::give(child);
            break;
        }
        attr_.socket_accept_cb(child->handle(), listener.handle(), listener.userdata);
    }
    ready(listener);
}

void Group::receive(GroupSocket& socket) {
    for (unsigned round = 0; round < kRounds && socket.stage == Stage::open; round++) {
        Packets packets;
        const Packets::Rest rest = packets.take_from(socket.fd);
        if (packets.count() > 0) ReceiveMemory::announce();
        for (unsigned i = 0; i < packets.count(); i++)
            for (PacketPiece *piece = packets[i], *next; piece; piece = next) {
                next = piece->next;
                deliver(socket, piece->payload, piece->len, reinterpret_cast<xlio_buf*>(piece));
            }
        if (rest == Packets::Rest::none) return;
        if (rest == Packets::Rest::usual_calls && !receive_copy(socket)) return;
        // There is something, and no memory for it now.
        if (rest == Packets::Rest::here && packets.count() == 0) break;
    }
    if (socket.group == this && socket.stage == Stage::open) ready(socket);
}

// What no ring has: bytes that came by the kernel, the end of the stream, an error. False: nothing more.
bool Group::receive_copy(GroupSocket& socket) {
    ReceiveCopy* const copy = ReceiveMemory::take_copy();
    if (copy == nullptr) {
        ready(socket);
        return false;
    }
    const ssize_t got = calls::receive(socket.fd, copy->text, ReceiveCopy::kRoom);
    if (got > 0) {
        ReceiveMemory::announce();
        deliver(socket, copy->text, size_t(got), &copy->buf);
        return true;
    }
    const int error = got < 0 ? errno : 0;
    ReceiveMemory::give_back(&copy->buf);
    if (got == 0) {
        if (!socket.ended && !socket.leaving) tell(socket, XLIO_SOCKET_EVENT_CLOSED);
        socket.ended = true;
    } else if (error != EAGAIN && error != EINTR) {
        fail(socket, error);
    }
    return false;
}

void Group::deliver(GroupSocket& socket, void* text, size_t length, xlio_buf* buf) {
    if (socket.leaving || attr_.socket_rx_cb == nullptr) return ReceiveMemory::give_back(buf);
    attr_.socket_rx_cb(socket.handle(), socket.userdata, text, length, buf);
}

void Group::fail(GroupSocket& socket, int error) {
    socket.stage = Stage::failed;
    socket.failure.store(0, std::memory_order_relaxed);
    {
        const Guard guard(*this);
        socket.sending_hook.unlink();
        socket.dirty_hook.unlink();
    }
    if (!socket.leaving) tell(socket, XLIO_SOCKET_EVENT_ERROR, told_error(error));
    tell_done(socket, SendQueue::kEverything);
}

void Group::tell_done(GroupSocket& socket, uint64_t place) {
    for (;;) {
        uintptr_t userdata;
        {
            const Guard guard(*this);
            if (!socket.queue.take_done(place, &userdata)) return;
        }
        if (attr_.socket_comp_cb != nullptr)
            attr_.socket_comp_cb(socket.handle(), socket.userdata, userdata);
    }
}

// Writes what there is room for, and tells of what the peers have acknowledged.
void Group::finish_sends() {
    Sending now;
    {
        const Guard guard(*this);
        now.splice_back(sending_);
    }
    for (;;) {
        GroupSocket* socket;
        uint64_t place = 0;
        bool broken;
        {
            const Guard guard(*this);
            socket = now.pop_front();
            if (socket == nullptr) return;
            const calls::Progress progress = calls::progress(socket->fd);
            broken = progress.events & (EPOLLERR | EPOLLHUP);
            // A connection that has ended has nothing unacknowledged any more.
            if (!broken) place = socket->queue.written() - progress.unacknowledged;
            if (!broken && socket->flushing && (progress.events & EPOLLOUT)) write_out(*socket);
            broken |= socket->failure.load(std::memory_order_relaxed) != 0;
            if (!socket->queue.empty() && !socket->sending_hook.linked())
                sending_.push_back(*socket);
        }
        if (broken)
            ready(*socket);
        else
            tell_done(*socket, place);
    }
}

void Group::end_leaving() {
    GroupSocket* next;
    for (GroupSocket* socket = leaving_.front(); socket; socket = next) {
        next = leaving_.next(*socket);
        if (socket->stage == Stage::open) {
            const calls::Progress progress = calls::progress(socket->fd);
            if (progress.events & (EPOLLERR | EPOLLHUP))
                ready(*socket);  // the next poll finds out why
            if (!socket->queue.all_written() || progress.unacknowledged > 0) continue;
        }
        terminate(*socket);
    }
}

void Group::terminate(GroupSocket& socket) {
    remove(socket);
    tell_done(socket, SendQueue::kEverything);
    calls::close(socket.fd);
    tell(socket, XLIO_SOCKET_EVENT_TERMINATED);
    GroupSocket::give(&socket);
}

}  // namespace vma::extra::group
