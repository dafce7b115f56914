// A behaviour: one small POSIX program in two roles, a and b, which run as two processes in two network namespaces joined by a
// veth pair. Each role writes a transcript of what it saw. run.py runs the roles on the kernel, preloaded, and mixed, and
// compares the transcripts, the exit status and standard error.
//
//     BEHAVIOUR(recv_waitall, "MSG_WAITALL waits for the whole length");
//     void recv_waitall::a() {                      void recv_waitall::b() {
//         const int s = connected();                    const int s = connected();
//         SEE(got(s, 6, MSG_WAITALL));                  put(s, "abc");
//     }                                                 step("half");
//                                                       put(s, "def");  ...
//
// Rules: nothing that varies from run to run enters a transcript (ports, addresses, times, pids, sizes of buffers); the roles
// wait for each other by step() or tell()/hear(), never by time; every wait is bounded. The functions here are not hooked by
// anybody: they call libc as programs do.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <type_traits>
#include <vector>

namespace behave {

// ---- Registration

enum Kind : unsigned {
    pair = 0,  // both roles; each shows at least one socket to be on the ring when it is preloaded
    solo = 1,  // role a alone
    a_kernel = 2,  // role a has no socket on the ring: what it does stays with the kernel by design
    b_kernel = 4,  // the same for b
};

struct Behaviour {
    const char* file;  // source file: its name without the ending is the group
    const char* name;
    const char* title;
    void (*a)();
    void (*b)();
    unsigned kind;
};

struct Registered {
    explicit Registered(const Behaviour& behaviour);
};

#define BEHAVIOUR(NAME, TITLE, ...)                                                          \
    namespace {                                                                              \
    struct NAME {                                                                            \
        static void a();                                                                     \
        static void b();                                                                     \
    };                                                                                       \
    const ::behave::Registered registered_##NAME{                                            \
        {__FILE__, #NAME, TITLE, NAME::a, NAME::b, 0u __VA_OPT__(| unsigned(__VA_ARGS__))}}; \
    }                                                                                        \
    static_assert(true)
// Role a alone: the body of the only function follows.
#define SOLO(NAME, TITLE, ...)                                 \
    namespace {                                                \
    struct NAME {                                              \
        static void a();                                       \
    };                                                         \
    const ::behave::Registered registered_##NAME{              \
        {__FILE__, #NAME, TITLE, NAME::a, nullptr,             \
         ::behave::solo __VA_OPT__(| unsigned(__VA_ARGS__))}}; \
    }                                                          \
    void NAME::a()

// ---- Transcript

// One line: the text of the call and its result. A negative number is followed by errno's name; a success that changed errno is
// marked. Returns the result, so that SEE can stand wherever the call could. SEE sets errno to 0 first.
long see(const char* call, long result);
const std::string& see(const char* call, const std::string& result);
#define SEE(...) (errno = 0, ::behave::see(#__VA_ARGS__, (__VA_ARGS__)))
// A line of its own.
void note(const std::string& text);

// ---- The other role

void step(const char* name);         // goes on when both roles are at the step of this name
void tell(const std::string& text);  // a word to the other role
std::string hear();                  // the next word of the other role
bool role_a();

// ---- Ring or kernel. In a kernel role nothing happens; the checks are not part of the transcript.

void on_ring(
    int fd);  // fails the run when the preloaded library does not serve the socket by a ring
void on_kernel(int fd);  // ... when it does
// ... when another number of datagrams than these were received from, or sent by, its ring.
void by_ring(int fd, unsigned received, unsigned sent = 0);

// ---- Addresses. Ports are counted from a base of this run.

uint16_t port(int offset = 0);
sockaddr_in at(
    const char* who,
    uint16_t port);  // "a", "b", "a2" (a's second address), "b2", "any", "lo", "nowhere" (no
                     // route), "silent" (never answers), "g1", "g2" (multicast groups)
std::string shown(
    const sockaddr_in& name);  // "a:+0": a port of the run; "b:*": one the system chose
std::string name_of(int fd);   // getsockname
std::string peer_of(int fd);   // getpeername
inline sockaddr* raw(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }
inline const sockaddr* raw(const sockaddr_in& address) {
    return reinterpret_cast<const sockaddr*>(&address);
}

// ---- Sockets

inline int tcp(int flags = 0) { return socket(AF_INET, SOCK_STREAM | flags, 0); }
inline int udp(int flags = 0) { return socket(AF_INET, SOCK_DGRAM | flags, 0); }
int bind_to(int fd, const char* who, int offset = 0);
int bind_any(int fd, const char* who);  // port 0
int connect_to(int fd, const char* who, int offset = 0);
// A listener of this role on port(offset) that its stack serves from now on (one accept() was tried).
int listening(int offset = 0, int backlog = 16);
// A connection between the roles: a dials, b accepts on port(offset). Checked to be on the ring; returns in both roles when it
// was accepted.
int connected(int offset = 0);
int dialled(int offset = 0);  // the active half alone: step("listening"), then connects
int accepted(int listener);   // the passive half alone: step("listening"), then accepts
int udp_bound(
    int offset = 0,
    const char* who = nullptr);  // own address unless said otherwise; checked to be on the ring
// b and a each with a UDP socket bound to own port(offset) and connected to the other's.
int udp_pair(int offset = 0);

int set(int fd, int level, int name, int value = 1);  // setsockopt of an int
std::string option(int fd, int level, int name);      // getsockopt of an int: "1", or the error
void set_time(int fd, int name, int milliseconds);    // SO_RCVTIMEO, SO_SNDTIMEO
void linger_for(int fd, int seconds);
void nonblocking(int fd, bool yes = true);
long put(int fd, const std::string& text, int flags = MSG_NOSIGNAL);
std::string got(int fd, size_t size = 100,
                int flags = 0);  // what recv() gave: 5 "hello", 0 "", or the error
std::string rest(int fd);  // reads to the end: number of bytes, a hash of them, and how it ended
std::string pattern(size_t n);  // n bytes, the same in every run
uint64_t hash(const std::string& text);
// A msghdr of one part, with room for control messages.
inline msghdr message_of(iovec& part, void* control = nullptr, size_t room = 0) {
    msghdr m{};
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = room;
    return m;
}

// ---- Readiness

std::string events_text(uint32_t events);  // "IN|OUT"
std::string polled(int fd, short events = -1,
                   int timeout = 0);  // poll(); events -1: all that there are
std::string ready(int fd);            // as poll, epoll and select see it, without waiting
bool until(
    int fd,
    short
        events);  // waits, bounded, until all of these are there; false and a note when they do not come
bool until_bytes(int fd, int n);  // until FIONREAD says at least n
bool until_acknowledged(int fd);  // until SIOCOUTQ says that the peer has everything
int state_of(int fd);             // TCP_INFO\'s state: TCP_ESTABLISHED ...
bool until_state(int fd, int state);

// Writes until the socket, non-blocking from here on, takes no more and the peer's window is shut, too. Nobody reads there.
// Bytes written.
long fill(int fd);

// ---- Time and threads

int64_t milliseconds();  // CLOCK_MONOTONIC
// "in time" when at least `least` ms have passed since `begin` and not absurdly more, else "too soon" or "too late".
std::string waited(int64_t begin, int least);
void until_asleep(int tid);  // until the thread sleeps in the kernel; bounded
int own_tid();
// Runs from the constructor's return on; ended by join() at the latest in the destructor.
class Thread {
  public:
    explicit Thread(std::function<void()> body);
    ~Thread() { join(); }
    Thread(const Thread&) = delete;
    void sleeps();  // until it sleeps in the kernel; bounded
    int cancel();
    int kill(int number);
    std::string join();  // bounded; "returned" or "cancelled"

  private:
    std::function<void()> body_;
    std::promise<int> tid_;
    int tid_value_ = 0;
    pthread_t handle_{};
    std::string joined_;
};
// A thread in a call that blocks: it sleeps there when the constructor returns.
class Asleep {
  public:
    explicit Asleep(std::function<std::string()> call)
        : thread_([this, call = std::move(call)] { seen_ = call(); }) {
        thread_.sleeps();
    }
    void sleeps() { thread_.sleeps(); }  // again, or still; bounded
    // What the call gave; bounded.
    std::string wakes() {
        thread_.join();
        return seen_;
    }

  private:
    std::string seen_;
    Thread thread_;
};

// ---- Signals

void catch_signal(int number, int flags = 0);  // a handler that counts
int caught();
void forget_caught();      // counts from 0 again
bool until_caught(int n);  // bounded

// ---- Processes

std::string outcome(int pid);  // of a child: "exit 0", "signal KILL"

}  // namespace behave

using namespace behave;  // NOLINT: behaviours are read beside man pages; every file of this folder is one of theirs
