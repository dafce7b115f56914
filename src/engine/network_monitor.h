// NetworkMonitor: the network state of one namespace, kept live over one NETLINK_ROUTE socket.
// Full dump at open, then multicast notifications (links, addresses, routes, rules, nexthops, neighbours, qdiscs).
// Routes and addresses are dumped again when something changed, because the kernel does not announce every removal
// (an interface that goes down takes its IPv4 routes along silently) nor the order of addresses; neighbours are
// followed one by one. A lost notification (ENOBUFS) dumps everything again. Threads: process() from one thread at a
// time (the internal thread); everything else from any thread. After fork the child must call forget_in_child()
// instead of using or destroying an inherited monitor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "stack/route.h"

namespace vma {

// A number that names the network namespace of socket `fd` (SO_NETNS_COOKIE; before Linux 5.14 the inode of the calling
// thread's /proc/thread-self/ns/net). Unique while the machine runs (cookie) or while the namespace lives (inode).
Result<uint64_t> namespace_key(int socket_fd);

class NetworkMonitor {
  public:
    // The monitor of the calling thread's namespace: an existing one, or a new one after its first dump. Keep the
    // pointer: the monitor closes with its last owner. Errors: socket, bind or dump errno (EPERM under a strict
    // sandbox).
    static Result<std::shared_ptr<NetworkMonitor>> of_this_namespace();
    // Same for a namespace already known by key: null when there is no monitor for it.
    static std::shared_ptr<NetworkMonitor> find(uint64_t namespace_key);
    // Forked child: drops the registry without touching descriptors or locks of the parent (they leak, deliberately).
    static void forget_in_child();

    ~NetworkMonitor();
    NetworkMonitor(const NetworkMonitor&) = delete;
    NetworkMonitor& operator=(const NetworkMonitor&) = delete;

    uint64_t key() const;
    int fd() const;  // readable when process() has work
    // Reads all pending notifications and publishes a new view if something changed. Never blocks longer than a dump.
    void process();
    // Call process() at this time even if fd() stays silent: a dump was put off because dumps cost more than a tenth of
    // the time (huge routing tables that change constantly). Usually never().
    Instant due() const;

    std::shared_ptr<const NetworkView> view() const;  // never null
    // Grows with every change that can alter a decision: compare before asking for the view again.
    uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
    // Grows with every change of a neighbour's address or usability.
    uint64_t neighbor_generation() const {
        return neighbor_generation_.load(std::memory_order_acquire);
    }
    // Bumped when the kernel has told of interfaces, at once: the view may follow later.
    uint64_t link_news() const { return link_news_.load(std::memory_order_acquire); }

    Neighbor neighbor(int ifindex, const IpAddr& addr) const;
    struct KnownNeighbor {
        int ifindex = 0;
        IpAddr addr;
        Neighbor neighbor;
    };
    std::vector<KnownNeighbor> neighbors() const;  // by interface
    // Asks the kernel to resolve (ARP, and its retries, stay the kernel's). At most once per 100 ms and neighbour. Without
    // CAP_NET_ADMIN the kernel refuses, and process() sends the neighbour an empty datagram instead.
    void resolve(int ifindex, const IpAddr& addr);
    // For an entry in use: when it is stale, has the kernel confirm it. At most once per second and neighbour.
    void keep_fresh(int ifindex, const IpAddr& addr);

    // Counters for statistics and tests.
    uint64_t overruns() const;  // notifications lost, everything dumped again
    uint64_t dumps() const;     // dump rounds

  private:
    struct State;
    explicit NetworkMonitor(std::unique_ptr<State>);
    std::unique_ptr<State> state_;
    std::atomic<uint64_t> generation_{1};
    std::atomic<uint64_t> neighbor_generation_{1};
    std::atomic<uint64_t> link_news_{0};
};

}  // namespace vma
