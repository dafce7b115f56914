#include "sock/screen.h"

#include <pthread.h>

#include "base/deferred_signal.h"
#include "sock/socket.h"

namespace vma::sock {
namespace {

using Waiting = List<Screening, &Screening::waiting_hook>;
constinit SpinLock g_lock;
constinit Waiting g_waiting;  // of Socket::screening

// The callback runs as the program: with its signals, and with the library's hooks. It is not cancelled in there, because what
// called it has to be ended in order.
ScreenAnswer ask_program(const Screen& screen, const ShownPacket& packet) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    leave_library();
    const ScreenAnswer answer = screen.show(packet, screen.callback, screen.context);
    enter_library();
    pthread_setcancelstate(before, nullptr);
    return answer;
}

}  // namespace

std::atomic<uint32_t> Screens::count_{0};

bool Socket::show_waiting(AskProgram ask) {
    bool any = false;
    for (;;) {
        if (screening.running.exchange(true, std::memory_order_acq_rel)) return any;
        Showing last = Showing::nothing;
        // Once it is closed nobody wants to see what it has. A signal's handler runs before the next packet.
        while (is_open() && pending_signal() == PendingSignal::none &&
               (last = show_one(ask)) == Showing::one) {
            SocketCounters::add(counters.rx_callback, 1);
            any = true;
        }
        screening.running.store(false, std::memory_order_release);
        // What came after the last look was left to this thread.
        if (!is_open() || !unscreened()) return any;
        if (last == Showing::stuck || pending_signal() != PendingSignal::none) {
            Screens::add(*this);
            return any;
        }
    }
}

void Screening::set(const Screen& screen) {
    SpinGuard guard(lock_);
    screen_ = screen;
    on_.store(screen.show != nullptr, std::memory_order_release);
}

Screen Screening::get() {
    SpinGuard guard(lock_);
    return screen_;
}

void Screens::add(Socket& socket) {
    SpinGuard guard(g_lock);
    if (socket.screening.waiting_hook.linked()) return;
    socket.screening.socket = &socket;
    g_waiting.push_back(socket.screening);
    count_.fetch_add(1, std::memory_order_release);
}

void Screens::remove(Socket& socket) {
    SpinGuard guard(g_lock);
    if (!socket.screening.waiting_hook.linked()) return;
    socket.screening.waiting_hook.unlink();
    count_.fetch_sub(1, std::memory_order_release);
}

bool Screens::run_all() {
    // In a handler on top of another call, or about to end one: the next call of the program shows it.
    if (thread_state.depth != 1 || pending_signal() != PendingSignal::none) return false;
    bool any = false;
    // As many as wait now: two sockets whose callbacks send to each other must not keep this thread for ever.
    for (uint32_t left = count_.load(std::memory_order_relaxed); left > 0; left--) {
        Socket* socket;
        {
            SpinGuard guard(g_lock);
            Screening* const first = g_waiting.pop_front();
            if (first == nullptr) break;
            count_.fetch_sub(1, std::memory_order_release);
            socket = first->socket;
            // The last reference may be gone already; its destruction has to take the lock first, and finds nothing to do.
            if (!try_reference(*socket)) continue;
        }
        any |= socket->show_waiting(ask_program);
        release_object(socket);
    }
    return any;
}

void Screens::forget_in_child() {
    new (&g_lock) SpinLock;
    new (&g_waiting) Waiting;
    count_.store(0, std::memory_order_relaxed);
}

}  // namespace vma::sock
