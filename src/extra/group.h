// Polling groups (mellanox/xlio.h): sockets of the library that are served by polling one group, which tells by callbacks what
// has happened to them. Built on the calls that a program could make itself (group_calls.h), so that a socket that goes to the
// kernel, or never left it, is served on.
//
// Threads: calls on one group are the program's to serialise. What sends and poll share is under `lock_` for groups with
// XLIO_GROUP_FLAG_SAFE. No callback runs under it, or inside the library.
#pragma once

#include <mellanox/xlio.h>

#include <atomic>
#include <cstdint>

#include "base/list.h"
#include "base/spin_lock.h"

namespace vma::extra::group {

class Group;

// Text that was to be copied, in pieces.
struct InlineText {
    static constexpr size_t kRoom = 2032;
    InlineText* next;
    unsigned char text[kRoom];
};

// A piece of what the program has asked to send. Until `at` has reached the end of it, the memory is read; the program hears of
// it when the peer has it all.
struct SendPiece {
    SendPiece* next;
    const unsigned char* at;
    size_t left;         // not yet with the socket
    uint64_t end;        // of it in the stream
    uintptr_t userdata;  // 0: nobody wants to hear of it
    InlineText* text;    // or null
};

// The pieces of one socket, in order: [first, unsent) are with the socket, the rest is not.
class SendQueue {
  public:
    // All of it or, for want of memory, nothing.
    bool add(const iovec* iov, unsigned count, bool copy, uintptr_t userdata);
    bool empty() const { return first_ == nullptr; }
    bool all_written() const { return unsent_ == nullptr; }
    // The next pieces to write; `more`: there are others behind them.
    static constexpr unsigned kStep = 64;
    unsigned next(iovec (&iov)[kStep], bool* more) const;
    void wrote(size_t bytes);
    uint64_t written() const { return written_; }
    // Takes off what ends up to this place in the stream. True: userdata of a piece to tell of.
    bool take_done(uint64_t place, uintptr_t* userdata);
    static constexpr uint64_t kEverything = UINT64_MAX;

  private:
    void drop_first();
    SendPiece* first_ = nullptr;
    SendPiece* last_ = nullptr;
    SendPiece* unsent_ = nullptr;
    uint64_t queued_ = 0, written_ = 0;  // bytes ever
    unsigned wanted_ = 0;                // pieces to tell of
};

enum class Stage : uint8_t { idle, connecting, listening, open, failed };

struct GroupSocket {
    static GroupSocket* make(int fd);  // null: no memory
    static void give(GroupSocket* socket);

    Group* group = nullptr;  // null: detached
    int fd = -1;
    uintptr_t userdata = 0;
    std::atomic<Stage> stage{Stage::idle};  // polls change it beside sends of XLIO_GROUP_FLAG_SAFE
    std::atomic<int> failure{0};            // an error to tell of; sends find it, too
    bool bound = false;
    bool ended = false;     // the peer's end was told
    bool leaving = false;   // destroyed by the program: nothing is told any more but its end
    bool flushing = false;  // what is queued has to go as soon as there is room
    uint32_t events = 0;    // EPOLL*, since it began to connect
    SendQueue queue;
    ListHook member_hook, ready_hook, sending_hook, dirty_hook, leaving_hook;

    xlio_socket_t handle() { return reinterpret_cast<xlio_socket_t>(this); }
    static GroupSocket* of(xlio_socket_t handle) { return reinterpret_cast<GroupSocket*>(handle); }
};

class Group {
  public:
    Group(const xlio_poll_group_attr& attr, int set) : attr_(attr), set_(set) {}
    // Ends all its sockets. False: not now, from inside its own poll.
    bool end();
    void update(const xlio_poll_group_attr& attr) { attr_ = attr; }
    bool accepts() const { return attr_.socket_accept_cb != nullptr; }

    void poll();
    void flush();

    // ---- its sockets
    void add(GroupSocket& socket);
    bool watch(GroupSocket& socket);  // its readiness; false: errno says why not
    void remove(GroupSocket& socket);
    // False: there is no memory.
    bool send(GroupSocket& socket, const iovec* iov, unsigned count, bool copy, bool at_once,
              uintptr_t userdata);
    void flush(GroupSocket& socket);
    void leave(GroupSocket& socket);  // it was destroyed
    void fail_later(GroupSocket& socket, int error);

  private:
    // Sends may come from another thread than polls, if the program has said so.
    class Guard {
      public:
        explicit Guard(Group& group)
            : lock_(group.attr_.flags & XLIO_GROUP_FLAG_SAFE ? &group.lock_ : nullptr) {
            if (lock_) lock_->lock();
        }
        ~Guard() {
            if (lock_) lock_->unlock();
        }
        Guard(const Guard&) = delete;
        Guard& operator=(const Guard&) = delete;

      private:
        SpinLock* const lock_;
    };

    void serve(GroupSocket& socket);
    void finish_connecting(GroupSocket& socket);
    void accept_all(GroupSocket& socket);
    void receive(GroupSocket& socket);
    bool receive_copy(GroupSocket& socket);
    void deliver(GroupSocket& socket, void* text, size_t length, xlio_buf* buf);
    void fail(GroupSocket& socket, int error);
    void finish_sends();
    void tell_done(GroupSocket& socket, uint64_t place);
    void write_out(GroupSocket& socket);  // under lock_
    void end_leaving();
    void terminate(GroupSocket& socket);
    void tell(GroupSocket& socket, int event, int value = 0) {
        attr_.socket_event_cb(socket.handle(), socket.userdata, event, value);
    }
    void ready(GroupSocket& socket) {
        if (!socket.ready_hook.linked()) ready_.push_back(socket);
    }

    xlio_poll_group_attr attr_;
    const int set_;  // an epoll set
    bool polling_ = false;
    SpinLock lock_;
    using Sending = List<GroupSocket, &GroupSocket::sending_hook>;
    using Ready = List<GroupSocket, &GroupSocket::ready_hook>;
    List<GroupSocket, &GroupSocket::member_hook> members_;
    Ready ready_;                                        // something may have come
    Sending sending_;                                    // with pieces; under lock_, as the next
    List<GroupSocket, &GroupSocket::dirty_hook> dirty_;  // with pieces that nobody has flushed
    List<GroupSocket, &GroupSocket::leaving_hook> leaving_;
};

}  // namespace vma::extra::group
