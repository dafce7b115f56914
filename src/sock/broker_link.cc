#include "sock/broker_link.h"

#include <errno.h>

#include <atomic>

#include "base/own_fd.h"
#include "broker/client.h"
#include "broker/spawn.h"
#include "dev/packet/packet_ring.h"
#include "engine/runtime.h"
#include "sock/fd_table.h"
#include "sock/mover.h"
#include "sock/tcp_socket.h"

namespace vma::sock {
namespace {

constexpr unsigned kMostWatched = 256;
std::atomic<Shard*> g_watched[kMostWatched];
std::atomic<bool> g_dropping{false};

template <class Fn>
void for_each_tcp(Fn&& fn) {
    for (unsigned fd = 0; fd < FdTable::high_water(); fd++) {
        if (!maybe_ours(int(fd))) continue;
        ObjectRef ref{int(fd)};
        if (ref && ref.get()->kind == ObjectKind::tcp)
            fn(static_cast<TcpSocket&>(*ref.get()), int(fd));
    }
}

class BrokerMover final : public Mover {
  public:
    Status restore(int fd, const tcp::Snapshot& s, const RepairQueues& q,
                   RepairOptions& saved) override {
        return broker::restore(fd, s, q, saved);
    }
    void cancel(int fd, const RepairOptions& saved) override { broker::cancel(fd, saved); }
    Status finish(int fd, const tcp::Snapshot& s, const RepairQueues& q,
                  const RepairOptions& saved) override {
        return broker::finish(fd, s, q, saved);
    }
    // Frames are not worth a message each: the peer repeats them.
    Status inject(ByteView) override { return Errno{EPERM}; }
    Status checkpoint(int fd, RepairImage& image, ByteSpan room) override {
        return broker::checkpoint(fd, image, room);
    }
    void resume(int fd, const RepairImage& image) override { broker::resume(fd, image); }
    Status release(int fd, const RepairImage& image) override { return broker::release(fd, image); }
};
BrokerMover g_mover;

}  // namespace

void broker_configure() {
    const Options& options = Runtime::options();
    broker::ClientConfig config;
    config.enabled = options.broker;
    config.path = options.broker_path.c_str();
    config.layout = layout_identity();
    broker::configure(config);
    set_broker_mover(&g_mover);
}

void broker_watch(Shard& shard) {
    for (auto& place : g_watched) {
        Shard* known = place.load(std::memory_order_acquire);
        if (known == &shard) return;
        if (known != nullptr) continue;
        if (!broker::start() || !broker::reachable()) return;
        if (!place.compare_exchange_strong(known, &shard)) {
            if (known == &shard) return;
            continue;
        }
        RingEstate estate;
        {
            LeaseGuard lease(shard.lease());
            estate = shard.ring_estate();
        }
        const Arena& arena = shard.arena();
        if (estate.slot == 0 || arena.memfd() < 0) return;
        broker::Watch w;
        w.arena = reinterpret_cast<uintptr_t>(&arena);
        w.reserve = arena.reserved();
        w.root = reinterpret_cast<uintptr_t>(shard.root());
        w.ring_data = estate.data;
        w.ring_bytes = estate.bytes;
        w.slot = estate.slot;
        w.token = estate.token;
        w.ifindex = shard.ifindex();
        broker::watch(w, arena.memfd());
        return;
    }
}

void broker_listener(int fd) {
    // A privileged process is believed; its listeners are shown when it is about to change that.
    if (broker::start() && !broker::has_net_admin()) broker::prove(fd);
}

void broker_before_drop() {
    if (!Runtime::started() || g_dropping.load(std::memory_order_relaxed)) return;
    if (!broker::has_net_admin()) return;
    bool any = !Runtime::shards().empty();
    for_each_tcp([&](TcpSocket& socket, int) { any = any || socket.is_listener(); });
    if (!any || g_dropping.exchange(true)) return;
    (void)broker::start();
    for_each_tcp([](TcpSocket& socket, int fd) {
        if (!socket.is_listener()) return;
        broker::prove(fd);
        // Afterwards no ring can be opened; steering to one that is open needs no privilege.
        socket.open_rings(fd);
    });
    guard_packet_rings();
    for (Shard* shard : Runtime::shards()) broker_watch(*shard);
    if (broker::reachable()) broker::drop_privileges();
}

void broker_forget_in_child(int kept_door) {
    broker::forget_in_child(kept_door);
    for (auto& place : g_watched) place.store(nullptr, std::memory_order_relaxed);
    g_dropping = false;
}

}  // namespace vma::sock
