// Who serves network namespaces other than that of `vmad --listen`. A process is in one namespace, so each has a worker: vmad again
// (--namespace), started by the first client that comes from it, and ended by its last, because a worker keeps its namespace
// from going. The doors of clients are passed to it. When `vmad --listen` ends, so do they.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "vmad/namespace.h"
#include "vmad/registry.h"
#include "vmad/rescue.h"

namespace vmad {

class Workers {
  public:
    Workers();
    // Readable when serve() has something to do.
    int fd() const { return poll_.get(); }
    void serve(Registry& registry);
    // Passes a client's door on to the worker of its namespace, which is started if there is none. `user`: whose client wants it; one
    // has kMostOfUser workers, root apart. False, and *why: nobody can serve it.
    bool pass(int door, uid_t user, const Namespace& where, int namespace_fd,
              const std::string& policy, std::string* why);
    // The file with the policy has changed.
    void reload();
    // In a forked child: these are not its own.
    void forget();

    static constexpr size_t kMost = 256;
    static constexpr size_t kMostOfUser = 16;

  private:
    struct Worker {
        Fd control;
        pid_t pid = -1;
        Namespace where;
        uid_t user = 0;
        uint32_t passed = 0;   // doors
        bool leaving = false;  // was told to
    };
    Worker* find(const Namespace& where);
    Worker* start(const Namespace& where, int namespace_fd, uid_t user, const std::string& policy,
                  std::string* why);
    bool hears(uint32_t id, Worker& worker, Registry& registry);

    Fd poll_;
    std::unordered_map<uint32_t, Worker> workers_;
    uint32_t next_ = 1;
};

// What goes to a worker is a byte: with a descriptor a door, without one the word that the policy has changed. This comes from it.
struct WorkerSays {
    enum Kind : uint32_t {
        idle,       // it has nothing left to do
        joins,      // a client of it, with its link
        publishes,  // a client of it
    } kind = idle;
    uint32_t doors = 0;   // idle: that it had got
    uint32_t client = 0;  // from here on: joins and publishes
    uint32_t user = 0;
    uint32_t address = 0;  // host order
    uint32_t port = 0;
    char share[32] = {};  // ends with zero
};

}  // namespace vmad
