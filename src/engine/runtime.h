// Runtime: what exists once per process: the configuration in force, the network namespaces seen, the shards, the internal
// thread. A forked child starts with none of it (forget_in_child) and makes its own at its first socket.
//
// Threads: any. `control` is the last lock in the order (fd table -> shard -> control); it is never taken on a data path.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "base/reason.h"
#include "base/result.h"
#include "config/snapshot.h"
#include "engine/kernel_policy.h"
#include "engine/lanes.h"
#include "engine/local_members.h"
#include "engine/network_monitor.h"
#include "engine/shard.h"

namespace vma::shm {
class ShmRing;
}
namespace vma {

// One network namespace in which this process has sockets. Made at its first socket, never freed.
class NetSpace {
  public:
    uint64_t key() const { return monitor_->key(); }
    NetworkMonitor& monitor() const { return *monitor_; }
    // Null when nothing of the kernel's policy could be read.
    KernelPolicy* policy() const { return policy_.get(); }
    LocalMembers& local_members() { return local_members_; }
    // Bumped by network and policy changes: cached decisions carry the value they were made under.
    uint64_t generation() const {
        return monitor_->generation() + (policy_ ? policy_->generation() : 0);
    }

    // The shard that serves interface `ifindex` in a lane, opened when needed. On failure null and *why (and a log line, once).
    // A failed interface is tried again when the network state has changed. Where only further rings cannot be had, the
    // interface's first one serves these lanes, too.
    Shard* shard(int ifindex, unsigned lane, Reason* why);
    // Is the shard one of this namespace's?
    bool has(const Shard& shard);
    // Interfaces that could carry a ring: Ethernet, up, not loopback, not a bond or bridge member.
    static bool can_carry_ring(const Interface& interface);

  private:
    friend class Runtime;
    struct Entry {
        int ifindex = 0;
        std::atomic<Shard*> shards[Lanes::kMost] = {};
        Shard* first = nullptr;  // of these
        Reason failed = Reason::none;
        uint64_t failed_generation = 0;
    };
    static constexpr unsigned kMaxInterfaces = 64;
    Entry* find(int ifindex);  // or null

    std::shared_ptr<NetworkMonitor> monitor_;
    std::unique_ptr<KernelPolicy> policy_;
    LocalMembers local_members_;
    Entry entries_[kMaxInterfaces];
    std::atomic<unsigned> entry_count_{0};
};

class Runtime {
  public:
    // Reads the configuration and starts the log. Safe to call again. False: stay on the kernel (the log says why).
    // `secure`: AT_SECURE is set.
    static bool start(bool secure);
    static bool started();

    static const Options&
    options();  // of the snapshot in force; valid for ever (snapshots are kept)
    static const Snapshot& snapshot();
    static Status add_rule(const char* text);  // extra API; EINVAL when it does not parse

    // Reads the rules file again: a snapshot swap, decided sockets keep what they were decided by. `by_itself`: the file
    // changed, nobody asked; what is said is then not repeated.
    static void reload_rules(bool by_itself);
    // The same without a word when nothing has changed, also when there is no file: the start has told of that.
    static void reload_rules_if_changed();
    // As reload_rules() when a viewer asks for it (statistics page). Any thread; two loads when nobody does.
    static void reload_if_asked();

    // Banner, warnings and the internal thread: at the first AF_INET socket. Later calls: reload_if_asked().
    static void heavy_start();

    // The namespace of socket `fd`, entered now if it is new and equals the calling thread's. Null: *why.
    static NetSpace* namespace_of(int socket_fd, Reason* why);

    // Every open shard of the process. The span stays valid: shards are added, never removed, until fork.
    static std::span<Shard* const> shards();
    static constexpr unsigned kMaxShards = 256;
    // Of all sockets of the process.
    static Lanes& lanes();

    // The shm ring's shard, opened when needed; of the internal thread's namespace. Null: there is none (a log line, once).
    static Shard* shm_shard(shm::ShmRing** ring);

    // Makes the internal thread look at its duties now (a new shard, a deadline).
    static void poke();
    // The internal thread runs `fn` in every turn (sock: requests of forked children). Set once.
    static void set_tick(void (*fn)());

    // For the internal thread.
    static void tick();
    static void housekeeping();
    static void follow_network();
    template <class Fn>
    static void for_each_space(Fn&& fn) {
        for (unsigned i = 0, n = space_count(); i < n; i++) fn(*space(i));
    }

    static void forget_in_child();
    // Closes rings so that nothing is steered to this process any more; the program is about to exit or exec.
    static void stop();

  private:
    static void reload_locked(bool by_itself);
    static unsigned space_count();
    static NetSpace* space(unsigned i);
};

}  // namespace vma
