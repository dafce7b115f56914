// Whom a host's broker introduces to whom: processes of different network namespaces that its policy puts together (share NAME in
// vmad.conf(5)). The other end of each process's link is here (dev/shm/introduction.h says what is said by it).
//
// Nobody is believed. An address that is published was seen in the process's namespace; it only says whom to ask, and two may publish
// the same. That two sockets are the ends of one connection is shown by what their kernels know and nobody else: the numbers of the
// first bytes (repair_first_bytes). A process tells nobody these, and the broker tells nobody either, only whether they fit.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ip_addr.h"
#include "base/result.h"
#include "dev/shm/introduction.h"
#include "repair/repair.h"
#include "vmad/fd.h"

namespace vmad {

// What a process gets by its session: `client` is its number there.
class Sharing {
  public:
    // The old link of that client, and what was published by it, is over. ENOSPC: there are too many.
    virtual vma::Status join(uint32_t client, Fd link, uid_t user, const std::string& share) = 0;
    // ENOLINK: it has not joined; ENOSPC.
    virtual vma::Status publish(uint32_t client, const vma::Endpoint& local) = 0;

  protected:
    ~Sharing() = default;
};

class Registry {
  public:
    // One end of a connection.
    struct End {
        uint64_t netns_cookie = 0;
        vma::Endpoint local, remote;
        vma::FirstBytes first;
    };
    using Read = std::function<vma::Result<End>(int socket)>;
    // `read`: of a descriptor that a process passed; an error if it is no established connection.
    explicit Registry(Read read = read_end);
    static vma::Result<End> read_end(int socket);

    // Readable when serve() has something to do.
    int fd() const { return poll_.get(); }
    // `blame`: closing what a process of that user passed took too long, so often.
    void serve(const std::function<void(uid_t, unsigned)>& blame);
    // `member`: the worker of its namespace in the upper half, the client there in the lower. ENOSPC.
    vma::Status join(uint64_t member, Fd link, uint64_t netns_cookie, uid_t user,
                     const std::string& share);
    vma::Status publish(uint64_t member, const vma::Endpoint& local);
    void end_user(uid_t user);
    // Everybody has to join anew. What goes by memory goes on.
    void clear();
    // In a forked child: these are not its own.
    void forget();

    struct Counters {
        uint64_t introduced = 0, proven = 0;
        uint64_t refused = 0;    // no proof
        uint64_t malformed = 0;  // after one of these the link ends
    };
    const Counters& counters() const { return counters_; }
    size_t members() const { return members_.size(); }

    static constexpr size_t kMost = 1024;
    static constexpr size_t kMostOfUser = 256;  // root apart
    static constexpr size_t kMostPublished = 64;
    static constexpr size_t kMostFound = 16;  // who accept at one endpoint
    static constexpr size_t kMostShown = 64;  // ends at once, of one side of an introduction

  private:
    struct Member {
        Fd link;
        uint64_t netns_cookie = 0;
        uid_t user = 0;
        std::string share;
        std::vector<vma::Endpoint> published;
        bool told = false;  // the log, that something was refused
    };
    struct Introduction {
        uint64_t sides[2] = {};  // who sought, who was found
        vma::Endpoint where;
        std::deque<End> shown[2];
    };
    void end(uint64_t id);
    bool hear(uint64_t id, const std::function<void(uid_t, unsigned)>& blame);
    int seek(uint64_t id, const vma::Endpoint& where);
    bool introduce(uint64_t seeker, uint64_t found, const vma::Endpoint& where);
    bool have_met(uint64_t seeker, uint64_t found, const vma::Endpoint& where) const;
    void forget(uint64_t id, uint64_t introduction);
    int show(uint64_t id, uint64_t introduction, int socket, bool prove);
    int prove(Introduction& with, unsigned side, const End& end);

    Read read_;
    Fd poll_;
    std::unordered_map<uint64_t, Member> members_;
    std::unordered_map<uint64_t, Introduction> introductions_;
    uint64_t next_ = 1;
    Counters counters_;
};

}  // namespace vmad
