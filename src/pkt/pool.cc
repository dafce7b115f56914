#include "pkt/pool.h"

#include <cassert>
#include <cstring>
#include <new>

namespace vma {
namespace {

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
// The room starts this many bytes behind the record.
constexpr size_t kRecordBytes = round_up(sizeof(PacketBuf), PacketPool::kDataAlign);
// Slabs are larger than Arena::kMaxSmall: whole pages, returned to the system when the pool ends.
constexpr size_t kSlabBytes = 256 * 1024;
constexpr size_t kLargeSlabBytes = 2 * 1024 * 1024;

PacketBuf* record_of(ListHook* hook) {
    static_assert(offsetof(PacketBuf, hook) == 0);
    return reinterpret_cast<PacketBuf*>(hook);
}

}  // namespace

uint8_t* PacketPool::room_of(PacketBuf* buf) {
    return reinterpret_cast<uint8_t*>(buf) + kRecordBytes;
}

PacketPool::~PacketPool() {
    assert(counters_.in_use == 0);
    if (counters_.in_use != 0) return;
    while (Slab* slab = slabs_) {
        slabs_ = slab->next;
        arena_.free(slab, slab->bytes, kDataAlign);
    }
}

bool PacketPool::add_slab(Class c) {
    const size_t bytes = c == kLarge ? kLargeSlabBytes : kSlabBytes;
    void* p = arena_.allocate(bytes, kDataAlign);
    if (p == nullptr) return false;
    slabs_ = new (p) Slab{slabs_, bytes};
    fresh_[c] = static_cast<uint8_t*>(p) + round_up(sizeof(Slab), kDataAlign);
    fresh_end_[c] = static_cast<uint8_t*>(p) + bytes;
    return true;
}

PacketBuf* PacketPool::fresh(Class c) {
    static constexpr uint32_t kRoom[] = {0, kSmallRoom, kMediumRoom, kLargeRoom};
    const size_t stride = round_up(kRecordBytes + kRoom[c], kDataAlign);
    if (size_t(fresh_end_[c] - fresh_[c]) < stride && !add_slab(c)) return nullptr;
    auto* buf = new (fresh_[c]) PacketBuf;
    fresh_[c] += stride;
    buf->pool = this;
    buf->pool_class = c;
    buf->pool_room = kRoom[c];
    ++counters_.created;
    return buf;
}

PacketBuf* PacketPool::acquire(Class c, size_t room) {
    if (counters_.in_use >= limits_.packets || counters_.bytes_in_use > limits_.bytes ||
        room > limits_.bytes - counters_.bytes_in_use) {
        ++counters_.failed_takes;
        return nullptr;
    }
    PacketBuf* buf = nullptr;
    if (free_[c]) {
        buf = record_of(free_[c]);
        free_[c] = buf->hook.next;
        buf->hook.next = nullptr;
        --counters_.free;
    } else if (c == kExact) {
        if (void* p = arena_.allocate(kRecordBytes + room, kDataAlign)) {
            buf = new (p) PacketBuf;
            buf->pool = this;
            buf->pool_class = c;
            buf->pool_room = uint32_t(room);
            ++counters_.created;
        }
    } else {
        buf = fresh(c);
    }
    if (buf == nullptr) {
        ++counters_.failed_takes;
        return nullptr;
    }
    if (++counters_.in_use > counters_.high_water) counters_.high_water = counters_.in_use;
    counters_.bytes_in_use += room;
    buf->len = 0;
    buf->meta = {};
    return buf;
}

Packet PacketPool::take(size_t room) {
    const Class c = room <= kSmallRoom    ? kSmall
                    : room <= kMediumRoom ? kMedium
                    : room <= kLargeRoom  ? kLarge
                                          : kExact;
    static constexpr size_t kRounded[] = {0, kSmallRoom, kMediumRoom, kLargeRoom};
    if (room > UINT32_MAX) {
        ++counters_.failed_takes;
        return {};
    }
    PacketBuf* buf = acquire(c, c == kExact ? room : kRounded[c]);
    if (buf == nullptr) return {};
    buf->data = room_of(buf);
    buf->room = buf->pool_room;
    return Packet(buf);
}

Packet PacketPool::lend(uint8_t* data, uint32_t len, PacketLender* lender, uint64_t cookie) {
    PacketBuf* buf = acquire(kLent, 0);
    if (buf == nullptr) return {};
    ++counters_.lent;
    buf->data = data;
    buf->len = len;
    buf->room = 0;
    buf->lender = lender;
    buf->lender_cookie = cookie;
    return Packet(buf);
}

Packet PacketPool::copy_of(const PacketBuf& from) {
    Packet p = take(from.len);
    if (!p) return p;
    if (from.len) std::memcpy(p->data, from.data, from.len);
    p->len = from.len;
    p->meta = from.meta;
    std::memcpy(p->scratch, from.scratch, sizeof(from.scratch));
    return p;
}

void PacketPool::release(PacketBuf* buf) {
    assert(!buf->hook.linked());
    if (PacketLender* lender = buf->lender) {
        buf->lender = nullptr;
        lender->give_back(*buf);
    }
    const auto c = Class(buf->pool_class);
    --counters_.in_use;
    counters_.bytes_in_use -= buf->pool_room;
    if (c == kLent) --counters_.lent;
    if (c == kExact) {
        --counters_.created;
        arena_.free(buf, kRecordBytes + buf->pool_room, kDataAlign);
        return;
    }
    buf->hook.next = free_[c];
    free_[c] = &buf->hook;
    ++counters_.free;
}

void release_packet(PacketBuf* buf) { buf->pool->release(buf); }

}  // namespace vma
