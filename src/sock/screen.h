// Receive callbacks (extra API): the program looks at each packet in one of its own threads, before it is readable, and says
// whether it is dropped, queued or kept. It runs inside the program's calls that receive or wait, with no lock held and outside
// the library: its own calls are like any others.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "base/ip_addr.h"
#include "base/list.h"
#include "base/spin_lock.h"
#include "sock/kept.h"

namespace vma::sock {

class Socket;

// What a callback is shown. `text` is memory of the pool: it stays where it is until the callback has answered, and when that
// was `keep`, until it is given back by `id`.
struct ShownPacket {
    int fd;
    iovec text;
    void* id;
    Endpoint source, destination;
    uint32_t queued_packets, queued_bytes;  // let through, not read yet
    int64_t hw_time_ns, realtime_ns;        // 0: not known
};
enum class ScreenAnswer : uint8_t { drop, queue, keep };

// A registered callback. `show` calls the program's function, which is `callback`, in its own terms.
struct Screen {
    using Show = ScreenAnswer (*)(const ShownPacket& packet, void* callback, void* context);
    Show show = nullptr;  // null: there is none
    void* callback = nullptr;
    void* context = nullptr;
    int fd = -1;  // by which it was registered
};

// A socket's callback and its turn.
class Screening {
  public:
    bool on() const { return on_.load(std::memory_order_acquire); }
    void set(const Screen& screen);
    Screen get();
    // The parent's threads may have been anywhere in here.
    void forget_in_child() {
        new (&lock_) SpinLock;
        new (&waiting_hook) ListHook;
        running.store(false, std::memory_order_relaxed);
    }

    Socket* socket = nullptr;          // while it waits
    ListHook waiting_hook;             // in the list of sockets that have something to show
    std::atomic<bool> running{false};  // a thread is showing, or in the callback

  private:
    std::atomic<bool> on_{false};
    SpinLock lock_;
    Screen screen_;
};

// Sockets that have something to show.
class Screens {
  public:
    static bool waiting() { return count_.load(std::memory_order_acquire) != 0; }
    // Shows what there is; the calling thread is in a call of the program, and holds no lock. True: something was shown.
    static bool run() { return waiting() && run_all(); }
    static void add(Socket& socket);     // any thread; leases may be held
    static void remove(Socket& socket);  // it is being destroyed
    static void forget_in_child();

  private:
    static bool run_all();
    static std::atomic<uint32_t> count_;
};

}  // namespace vma::sock
