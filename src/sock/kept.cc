// Packets of a socket that the program has.
#include "sock/kept.h"

#include "engine/runtime.h"
#include "sock/socket.h"

namespace vma::sock {

void* Socket::keep(Shard& shard, Packet packet, uint32_t charge, Seq connection) {
    counters.rx_kept.fetch_add(1, std::memory_order_relaxed);
    SocketCounters::add(counters.rx_zcopy, 1);
    return shard.kept().add(std::move(packet), {this, charge, connection});
}

bool Socket::give_back(const void* id) {
    for (Shard* shard : Runtime::shards()) {
        LeaseGuard lease(shard->lease());
        const Packet packet = shard->kept().remove(id, this);
        if (!packet) continue;
        counters.rx_kept.fetch_sub(1, std::memory_order_relaxed);
        kept_returned(*shard, packet->as<Kept>());
        return true;
    }
    return false;
}

void Socket::reclaim_kept() {
    if (counters.rx_kept.exchange(0, std::memory_order_relaxed) == 0) return;
    for (Shard* shard : Runtime::shards()) {
        LeaseGuard lease(shard->lease());
        while (const Packet packet = shard->kept().reclaim(this))
            kept_returned(*shard, packet->as<Kept>());
    }
}

}  // namespace vma::sock
