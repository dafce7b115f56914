#include "engine/salvage.h"

#include <errno.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/lease.h"
#include "engine/tcp_engine.h"

namespace vma {
namespace {

// A copy of a record of the arena that is read and never constructed: its lists must not be touched.
template <class T>
struct Copy {
    alignas(T) uint8_t bytes[sizeof(T)];
    const T& operator*() const { return *reinterpret_cast<const T*>(bytes); }
    const T* operator->() const { return reinterpret_cast<const T*>(bytes); }
    explicit Copy(const void* from) { std::memcpy(bytes, from, sizeof bytes); }
};

uint32_t mixed(uint32_t h, size_t v) {
    h ^= uint32_t(v);
    h *= 0x01000193u;
    return h ^ h >> 15;
}

constexpr size_t kMostText = 64u << 20;  // bytes of one queue
constexpr size_t kMostSteps = kMostText / 16;

}  // namespace

// Conditionally supported for a class that is not standard-layout; both compilers know it for classes without virtual bases.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
uint32_t layout_identity() {
    uint32_t h = 0x811c9dc5u;
    for (const size_t v : {sizeof(ArenaRoot),
                           sizeof(Lease),
                           sizeof(TcpEngine),
                           sizeof(TcpConnection),
                           sizeof(TcpTarget),
                           sizeof(TcpPath),
                           sizeof(FlowTuple),
                           sizeof(tcp::Tcb),
                           offsetof(tcp::Tcb, snd),
                           offsetof(tcp::Tcb, rcv),
                           offsetof(tcp::Tcb, ts),
                           offsetof(tcp::Tcb, loss),
                           offsetof(tcp::Tcb, timers),
                           offsetof(tcp::Tcb, board),
                           offsetof(tcp::Tcb, out),
                           offsetof(tcp::Tcb, in),
                           offsetof(tcp::Tcb, cfg),
                           sizeof(tcp::Snd),
                           sizeof(tcp::Rcv),
                           sizeof(tcp::SendBuffer),
                           sizeof(tcp::SendChunk),
                           sizeof(tcp::ReceiveQueue),
                           sizeof(tcp::RxText),
                           sizeof(PacketBuf),
                           offsetof(PacketBuf, data),
                           offsetof(PacketBuf, scratch),
                           sizeof(Endpoint)})
        h = mixed(h, v);
    return h;
}
#pragma GCC diagnostic pop

bool Salvage::inside(const void* p, size_t n) const {
    const auto at = reinterpret_cast<uintptr_t>(p), base = reinterpret_cast<uintptr_t>(base_);
    return at % 8 == 0 && at >= base && n <= bytes_ && at - base <= bytes_ - n;
}

Status Salvage::open(const void* base, size_t bytes, uint64_t root, const LentMemory& lent) {
    base_ = static_cast<const uint8_t*>(base);
    bytes_ = bytes;
    lent_ = lent;
    const auto* at = reinterpret_cast<const ArenaRoot*>(root);
    if (!inside(at, sizeof *at)) return Errno{EPROTO};
    std::memcpy(static_cast<void*>(&root_), at, sizeof root_);
    if (root_.magic != kArenaRootMagic || root_.layout != layout_identity()) return Errno{EPROTO};
    if (!inside(root_.lease, sizeof(Lease)) || !inside(root_.tcp, sizeof(TcpEngine)) ||
        reinterpret_cast<uintptr_t>(root_.lease) % alignof(Lease) != 0 ||
        reinterpret_cast<uintptr_t>(root_.tcp) % alignof(TcpEngine) != 0)
        return Errno{EPROTO};
    return {};
}

bool Salvage::was_held() const { return root_.lease->held(); }

unsigned Salvage::walk(Instant now, void (*fn)(void*, const Found&), void* context) const {
    unsigned nonsense = 0;
    const bool sound = root_.tcp->table().for_each_checked(
        [this](const void* p, size_t n) { return inside(p, n); },
        [&](const TcpTarget* target) {
            if (!inside(target, sizeof(TcpTarget))) {
                nonsense++;
                return;
            }
            if (Copy<TcpTarget>(target)->kind != TcpTarget::Kind::connection) return;
            const auto* c = static_cast<const TcpConnection*>(target);
            if (!inside(c, sizeof *c)) {
                nonsense++;
                return;
            }
            const Copy<TcpConnection> copy(c);
            const auto snapshot = tcp::export_snapshot(copy->tcb, now);
            if (!snapshot) return;  // not established, or over
            const tcp::Snapshot& s = *snapshot;
            const auto to_send = uint32_t(s.snd_end - Seq::min(s.snd_una, s.snd_end));
            if (s.state >= tcp::State::TIME_WAIT || to_send > kMostText || s.unread > kMostText ||
                !s.local.addr.is_v4() || !s.remote.addr.is_v4() || s.local.port == 0 ||
                s.remote.port == 0) {
                nonsense++;
                return;
            }
            Found found;
            found.address = c;
            found.snapshot = s;
            found.waiting = copy->listener != nullptr;
            uint8_t steered;  // the byte may be no bool
            std::memcpy(&steered, &copy->steered, 1);
            found.steered = steered != 0;
            fn(context, found);
        });
    return sound ? nonsense : nonsense + 1;
}

// Calls each(record, text) for the texts of the queue, front to back, while it returns true. False: it did not, or a record
// is not in the arena.
template <class Each>
bool Salvage::walk_unread(const Found& found, Each&& each) const {
    const ListHook* const end = found.address->tcb.in.packets.end_hook();
    const ListHook* hook = Copy<ListHook>(end)->next;
    for (size_t steps = 0; hook != end; steps++) {
        const auto* buf = reinterpret_cast<const PacketBuf*>(
            reinterpret_cast<const uint8_t*>(hook) - offsetof(PacketBuf, hook));
        if (!inside(buf, sizeof *buf) || steps > kMostSteps) return false;
        const Copy<PacketBuf> b(buf);
        tcp::RxText text;
        std::memcpy(&text, b->scratch, sizeof text);
        if (!each(*b, text)) return false;
        hook = b->hook.next;
    }
    return true;
}

__attribute__((no_sanitize("bool"))) bool Salvage::coherent(const Found& found) const {
    const Copy<TcpConnection> c(found.address);
    const tcp::SendBuffer& out = c->tcb.out;
    if (!(out.start == Seq::min(found.snapshot.snd_una, found.snapshot.snd_end))) return false;
    uint64_t held = 0;
    size_t steps = 0;
    for (const tcp::SendChunk* chunk = out.head; chunk != nullptr;) {
        if (!inside(chunk, sizeof *chunk) || ++steps > kMostSteps) return false;
        const Copy<tcp::SendChunk> k(chunk);
        if (k->begin > k->end) return false;
        held += k->end - k->begin;
        chunk = k->next;
    }
    if (held != out.bytes) return false;

    const tcp::Rcv& rcv = c->tcb.rcv;
    if (rcv.fin_done ? !(rcv.nxt == rcv.fin + 1) : rcv.fin_seen && rcv.nxt > rcv.fin) return false;
    uint64_t unread = 0;
    Seq next = found.snapshot.rcv_nxt - c->tcb.in.bytes;
    return walk_unread(found,
                       [&](const PacketBuf&, const tcp::RxText& text) {
                           unread += text.len;
                           const bool follows = text.seq == next && unread <= c->tcb.in.bytes;
                           next = text.end();
                           return follows;
                       }) &&
           unread == c->tcb.in.bytes;
}

bool Salvage::copy_unacked(const Found& found, Seq from, uint8_t* to, size_t n) const {
    const Copy<TcpConnection> c(found.address);
    const tcp::SendBuffer& out = c->tcb.out;
    Seq at = out.start;
    if (n == 0) return true;
    if (from < at) return false;
    size_t done = 0, steps = 0;
    for (const tcp::SendChunk* chunk = out.head; done < n; steps++) {
        if (!inside(chunk, sizeof *chunk) || steps > kMostSteps) return false;
        const Copy<tcp::SendChunk> k(chunk);
        if (k->begin > k->end || !inside(chunk, sizeof *chunk + k->end)) return false;
        const uint32_t held = k->end - k->begin;
        if (from < at + held) {
            const uint32_t skip = uint32_t(from - at);
            const size_t take = std::min<size_t>(n - done, held - skip);
            std::memcpy(to + done, chunk->data() + k->begin + skip, take);
            done += take;
            from += uint32_t(take);
        }
        at += held;
        chunk = k->next;
    }
    return true;
}

bool Salvage::copy_unread(const Found& found, uint8_t* to, size_t n) const {
    size_t done = 0;
    (void)walk_unread(found, [&](const PacketBuf& buf, const tcp::RxText& text) {
        const size_t take = std::min<size_t>(n - done, text.len);
        const uint8_t* from = nullptr;
        const uint64_t data = reinterpret_cast<uintptr_t>(buf.data) + uint64_t(text.offset);
        const auto base = reinterpret_cast<uintptr_t>(base_);
        if (data >= base && take <= bytes_ && data - base <= bytes_ - take)
            from = reinterpret_cast<const uint8_t*>(data);
        else if (lent_.ours && data >= lent_.theirs && take <= lent_.bytes &&
                 data - lent_.theirs <= lent_.bytes - take)
            from = lent_.ours + (data - lent_.theirs);
        if (from == nullptr) return false;
        std::memcpy(to + done, from, take);
        done += take;
        return done < n;
    });
    return done == n;
}

}  // namespace vma
