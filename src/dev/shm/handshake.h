// Handshake: two processes make a pair, over a connected SOCK_SEQPACKET unix socket that is all they have in common.
//
//   opener                                   joiner
//   hello()    -- HELLO, memory, bell -->    hello()      who is it?
//   answer()   <-- WELCOME, bell ---------   welcome()    or refuse(): <-- REFUSED, errno
//
// Nothing waits: EAGAIN, then call again when the socket is readable. Neither side believes the other: messages have one size,
// bring exactly the descriptors that they should, and those are what they should be (memory: sealed memfd; bell: timer). What
// else comes along is dropped by the kernel or closed aside (base/close_aside.h). Who the other one is says the kernel
// (SO_PEERCRED). The socket stays the caller's, and its end is the end of the pair. No thread rules.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "dev/shm/pair.h"

namespace vma::shm {

// Random, of one process (and its forked child has another).
struct ProcessId {
    uint64_t words[2] = {0, 0};
    bool operator==(const ProcessId&) const = default;
};

struct Self {
    ProcessId id;
    uint64_t namespace_cookie = 0;  // SO_NETNS_COOKIE
};

struct Neighbor {
    ProcessId id;  // as he says
    int pid = 0;   // these two as the kernel says
    uint32_t uid = 0;
};

// On the wire. The first three fields are the same in all versions.
struct HandshakeMessage {
    uint64_t magic;
    uint32_t version;
    uint32_t kind;
    uint64_t id[2];
    uint64_t namespace_cookie;
    uint32_t error;  // of REFUSED
    uint32_t reserved;
};
static_assert(sizeof(HandshakeMessage) == 48);
enum HandshakeKind : uint32_t { kHello = 1, kWelcome = 2, kRefused = 3 };
inline constexpr uint64_t kHandshakeMagic = 0x564d41'73686d68ull;

// Errors of both, beside those of the calls: EAGAIN; ECONNRESET: the other side has closed; EPROTO: no message of ours (*why says
// what is wrong); EPROTONOSUPPORT: another version; EXDEV: another network namespace; ELOOP: it is this process. After an
// error other than EAGAIN the attempt is over.

class Opener {
  public:
    Opener() = default;
    ~Opener() { parts_.close_all(); }
    Opener(const Opener&) = delete;
    Opener& operator=(const Opener&) = delete;

    // Makes memory and bell and sends them. EAGAIN: the socket has no room, nothing was sent.
    Status hello(int socket, const Self& self, uint32_t ring_bytes, std::string* why);
    // The pair, for Pair::open or ShmRing::add_pair. Also fails with the errno of refuse(): EALREADY, EACCES ...
    Result<PairParts> answer(int socket, Neighbor* neighbor, std::string* why);

  private:
    Self self_;
    PairParts parts_;
};

class Joiner {
  public:
    Joiner() = default;
    ~Joiner() { parts_.close_all(); }
    Joiner(const Joiner&) = delete;
    Joiner& operator=(const Joiner&) = delete;

    // Whoever asks; then welcome() or refuse(). What is wrong with a hello was answered already when this fails.
    Result<Neighbor> hello(int socket, const Self& self, std::string* why);
    Result<PairParts> welcome(int socket, std::string* why);
    // `error` from 1 to 4095.
    static void refuse(int socket, const Self& self, int error);

  private:
    Self self_;
    PairParts parts_;
};

}  // namespace vma::shm
