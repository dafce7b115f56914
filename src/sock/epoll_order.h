// What waits to be read from the sockets of an epoll set, in the order in which it arrived (ordered waits of the extra API).
// docs/decisions/0024-own-functions.md.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sock/epoll_target.h"

namespace vma::sock {

// A datagram, or the text of a frame. Stamps in ns of CLOCK_REALTIME.
struct UnreadPiece {
    int64_t at = 0;  // when the host received it
    int64_t hw = 0;  // when its device did; 0: it has not told
    uint32_t bytes = 0, datagrams = 0;
    int64_t order =
        0;  // `at`, but older than the present if it is of the future: the clock was set back since
};

// The first pieces of one socket.
class Unread {
  public:
    static constexpr unsigned kMost = 32;

    void clear() { *this = {}; }
    // What is read by one of its paths, in the order of reading, into a share of the room.
    class Path {
      public:
        Path(Unread& of, unsigned share) : of_(of), left_(share) {}
        // False: there is no room for it. Read later than what came before, it counts as no older.
        bool add(UnreadPiece piece);

      private:
        Unread& of_;
        unsigned left_;
        int64_t latest_ = INT64_MIN;
    };
    // What the socket has later than this is not known.
    void ends_at(int64_t at) { known_until_ = std::min(known_until_, at); }
    int64_t known_until() const { return known_until_; }
    // All paths are in, `now` or before.
    void sort(int64_t now);

    bool empty() const { return next_ == count_; }
    const UnreadPiece& first() const { return pieces_[next_]; }
    void advance() { next_++; }

  private:
    unsigned count_ = 0, next_ = 0;
    int64_t known_until_ = INT64_MAX;
    std::array<UnreadPiece, kMost> pieces_;
};

// A member that is ready, with a reference to it.
struct ReadyMember {
    ReadyMember(Pollable* m, uint32_t e, uint64_t d) : member(m), events(e), data(d) {}
    Pollable* member;
    uint32_t events;
    uint64_t data;
    bool listed = false;
    Unread unread;
};

// Consecutive pieces of one socket, none of which is later than the next one of another socket.
struct OrderedRun {
    UnreadPiece first;
    uint32_t bytes = 0, datagrams = 0;
};
// Takes what belongs to the events of a wait; those that it is told nothing of have nothing to read in an order.
class OrderSink {
  public:
    virtual void run(int event, const OrderedRun& run) = 0;

  protected:
    ~OrderSink() = default;
};

// Memory of an ordered wait, kept for the next one on the set.
struct OrderMemory {
    std::vector<ReadyMember> ready;
    std::vector<ReadyMember*> heap;  // with something unread, the oldest on top
};

// Runs of `memory.ready` that end at `horizon` into events, until one socket would come a second time: how many of `max`.
int list_in_order(OrderMemory& memory, int64_t horizon, epoll_event* out, int max, OrderSink& sink);

}  // namespace vma::sock
