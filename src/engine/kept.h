// KeptPackets: received packets of one shard that the program has, because it took them without a copy or its receive callback
// holds them. All are memory of the shard's pool, never a ring's: what a program may look at stays where it is. They fill the
// receive buffer of the socket that they came for until they are given back (docs/decisions/0017-kept-packets.md).
// Used under the shard lease.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/list.h"
#include "base/seq.h"
#include "pkt/packet.h"

namespace vma {

// What a program sees of a packet that SocketXtreme has given to it: its vma_buff_t. The program may write to it.
struct PacketPiece {
    PacketPiece* next = nullptr;
    void* payload = nullptr;
    uint16_t len = 0;
};

// PacketBuf::scratch of a kept packet.
struct Kept {
    void* owner = nullptr;  // the socket; null: it is closed, and the packet fills no buffer
    uint32_t charge = 0;    // UDP: of the datagram; TCP: bytes of text
    Seq connection;         // TCP: the ISS of the connection that it came by
    uint32_t holds = 1;     // pieces: how often the program has to give it back
    PacketPiece piece{};
};

class KeptPackets {
  public:
    // The id by which it is given back: its address, which is only compared, never followed.
    static void* id_of(PacketBuf& buf) { return &buf; }
    // The id of the packet that would have this piece.
    static const void* id_of(const PacketPiece* piece) {
        constexpr size_t kAt = offsetof(PacketBuf, scratch) + offsetof(Kept, piece);
        return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(piece) - kAt);
    }

    uint64_t now() const { return now_; }
    uint64_t reclaimed() const { return reclaimed_; }

    void* add(Packet packet, const Kept& kept) {
        now_++;
        PacketBuf* const buf = packet.detach();
        buf->as<Kept>() = kept;
        bucket(buf).push_back(*buf);
        return id_of(*buf);
    }
    // Takes it out; empty when `owner` has none of this id.
    Packet remove(const void* id, const void* owner) {
        PacketBuf* const buf = find(id);
        return buf && buf->as<Kept>().owner == owner ? take_out(*buf) : Packet();
    }
    // Null: there is none.
    PacketBuf* find(const void* id) {
        List& list = bucket(id);
        for (PacketBuf* buf = list.front(); buf; buf = list.next(*buf))
            if (buf == id) return buf;
        return nullptr;
    }
    Packet take_out(PacketBuf& buf) {
        now_--;
        buf.hook.unlink();
        return Packet(&buf);
    }
    // The owner goes, and the program keeps what it has.
    void disown(const void* owner) {
        for (List& list : buckets_)
            for (PacketBuf* buf = list.front(); buf; buf = list.next(*buf))
                if (buf->as<Kept>().owner == owner) buf->as<Kept>().owner = nullptr;
    }
    // The owner goes: one of those that were not given back, or empty.
    Packet reclaim(const void* owner) {
        for (List& list : buckets_)
            for (PacketBuf* buf = list.front(); buf; buf = list.next(*buf))
                if (buf->as<Kept>().owner == owner) {
                    reclaimed_++;
                    return take_out(*buf);
                }
        return {};
    }

  private:
    using List = PacketQueue;
    static constexpr unsigned kBuckets = 64;
    List& bucket(const void* id) {
        return buckets_[(reinterpret_cast<uintptr_t>(id) * 0x9e3779b97f4a7c15u >> 32) % kBuckets];
    }
    List buckets_[kBuckets];
    uint64_t now_ = 0, reclaimed_ = 0;
};

}  // namespace vma
