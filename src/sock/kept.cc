// Packets of a socket that the program has.
#include "sock/kept.h"

#include "engine/runtime.h"
#include "sock/socket.h"

namespace vma::sock {
namespace {

PacketPiece& lend_as(Kept kept, Shard& shard, Packet packet, const iovec& text) {
    PacketBuf& buf = *packet;
    kept.piece = {nullptr, text.iov_base, uint16_t(text.iov_len)};
    shard.lent().add(std::move(packet), kept);
    return buf.as<Kept>().piece;
}

}  // namespace

void* Socket::keep(Shard& shard, Packet packet, uint32_t charge, Seq connection) {
    counters.rx_kept.fetch_add(1, std::memory_order_relaxed);
    SocketCounters::add(counters.rx_zcopy, 1);
    return shard.kept().add(std::move(packet), {this, charge, connection});
}

PacketPiece& Socket::lend(Shard& shard, Packet packet, const iovec& text, uint32_t charge,
                          Seq connection) {
    counters.rx_kept.fetch_add(1, std::memory_order_relaxed);
    SocketCounters::add(counters.rx_zcopy, 1);
    return lend_as({this, charge, connection}, shard, std::move(packet), text);
}

PacketPiece& Socket::lend_copy(Shard& shard, Packet packet, const iovec& text) {
    return lend_as({}, shard, std::move(packet), text);
}

void Socket::piece_returned(Shard& shard, const Kept& kept) {
    counters.rx_kept.fetch_sub(1, std::memory_order_relaxed);
    kept_returned(shard, kept);
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
        shard->lent().disown(this);
    }
}

}  // namespace vma::sock
