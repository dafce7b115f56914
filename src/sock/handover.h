// Handover: how connections that waited in an accept queue of ours reach the program once their listener is the kernel's
// (process-model.md section 4). Each is in the kernel by then, a socket that no descriptor of the program names yet. It
// waits in a unix socket whose reading end every holder of the listener has: the parent, its children, the program after
// exec. And for each a *stand-in* waits in the kernel's accept queue: a connection that this process made to its own
// listener from an address that nobody else uses. So every way to wait for the listener works as if the connection itself
// waited there (poll, epoll, a blocking accept, in any process), and whoever accepts a stand-in takes a connection out of
// the unix socket in its place.
//
// A holder that does not come through our hooks (io_uring, a program without the library) sees the stand-in: a connection
// from kStandInAddress that ends at once.
//
// Thread rules: give() and the rest of the owner's side under the listener's control lock; take() from any thread.
#pragma once

#include <sys/socket.h>

#include <span>

#include "base/ip_addr.h"
#include "base/own_fd.h"
#include "base/time.h"

namespace vma::sock {

// 127.86.77.65
inline constexpr uint32_t kStandInAddress = 0x7f564d41;
bool is_stand_in(const sockaddr_storage& peer);

class Handover {
  public:
    static constexpr unsigned kMost = 64;  // of one process

    // Null: no descriptors, or kMost are in use.
    static Handover* create();
    static Handover* from_exec(int reader);  // takes the descriptor; null: it is not one of ours
    static void destroy(Handover* handover);
    // Has this process, or the one it comes from, ever had one? Nobody else has to look for stand-ins.
    static bool any();

    // ---- The process whose stack has the connections
    // A stand-in into the queue of the kernel's listener at `local`. False: it does not take one now.
    static bool announce(const Endpoint& local);
    // The connection it stands for; the descriptor is closed here in any case. False: the connection is lost.
    bool give(int connection);
    void no_more() { writer_.reset(); }

    // ---- Every holder
    // The next connection and its peer, or -1 when there is none for this stand-in (its owner died on the way).
    int take(Endpoint& peer);
    // What is there now stays in this process: take() makes no system call any more.
    void keep_here();
    int reader() const { return reader_.fd(); }
    bool has_kept() const { return kept_next_ < kept_count_; }

    // fork, in the child: before and after own_fds_close_in_child().
    static void keep_in_child();
    static void forget_in_child();

  private:
    int receive(Endpoint& peer);

    OwnFd reader_, writer_;
    static constexpr unsigned kMostKept = 512;
    struct Kept {
        int fd;
        Endpoint peer;
    };
    Kept kept_[kMostKept];
    unsigned kept_count_ = 0, kept_next_ = 0;
    int surviving_ = -1;  // of the reader, while a child closes what was its parent's
};

}  // namespace vma::sock
