#include "softhca/raw/switch.h"

#include <algorithm>
#include <cstring>

#include "softhca/hca/queues.h"
#include "softhca/raw/fields.h"

namespace softhca {
namespace {

constexpr uint32_t kNoPriority = UINT32_MAX;

// What one pass over the rules found.
struct Best {
    uint32_t priority = kNoPriority;
    Route route;

    void add(uint32_t station, const FlowRule& rule, uint32_t qp) {
        route.dropped |= rule.drop;
        for (uint32_t i = 0; i < route.count; i++)
            if (route.targets[i].station == station && route.targets[i].qp == qp)
                return;  // once per QP
        if (!rule.drop && route.count < Route::kMost)
            route.targets[route.count++] = {station, qp, rule.tag};
    }
};

bool takes_frame(const Station& s, const FlowRule& rule, const FlowFields& frame) {
    static const uint8_t kNone[6] = {};
    const bool multicast = frame.dst_mac[0] & 1;
    const bool addressed = std::memcmp(rule.mask.dst_mac, kNone, 6) != 0;
    if (rule.type != IBV_FLOW_ATTR_SNIFFER && !addressed && !multicast &&
        std::memcmp(s.mac, frame.dst_mac, 6) != 0)
        return false;
    return matches(rule, frame);
}

template <class Visit>
void for_matching(Context& c, const FlowFields& frame, uint32_t sender, uint32_t from,
                  Visit visit) {
    const bool multicast = frame.dst_mac[0] & 1;
    for (uint32_t s = 0; s < kMaxStations; s++) {
        if (!c.wire->directory().slots[s].raw.load(std::memory_order_acquire)) continue;
        StationMap* map = c.wire->station(s);
        if (!map) continue;
        const uint32_t end = (*map)->flow_end.load(std::memory_order_acquire);
        for (uint32_t i = 0; i < end; i++) {
            const FlowRule& rule = (*map)->flows[i];
            const uint32_t qp = rule.qp.load(std::memory_order_acquire);
            if (!qp || (multicast && s == sender && qp - 1 == from)) continue;
            if (takes_frame(map->station(), rule, frame)) visit(s, rule, qp - 1);
        }
    }
}

void take_normal(Context& c, const FlowFields& frame, uint32_t sender, uint32_t from, Best* best) {
    // From the smallest priority on, further only past rules that do not trap.
    for (int64_t above = -1;;) {
        uint32_t next = kNoPriority;
        for_matching(c, frame, sender, from, [&](uint32_t, const FlowRule& r, uint32_t) {
            if (r.type == IBV_FLOW_ATTR_NORMAL && r.priority > above)
                next = std::min<uint32_t>(next, r.priority);
        });
        if (next == kNoPriority) return;
        best->priority = next;
        bool trapped = false;
        for_matching(c, frame, sender, from, [&](uint32_t s, const FlowRule& r, uint32_t qp) {
            if (r.type != IBV_FLOW_ATTR_NORMAL || r.priority != next) return;
            best->add(s, r, qp);
            trapped |= !r.dont_trap;
        });
        if (trapped) return;
        above = next;
    }
}

// A station whose frames pile up may have lost its process: a card that does takes its rules away. Looks every 20 ms.
void look_whether_alive(Context& c, uint32_t station) {
    constexpr uint64_t kEveryNs = 20'000'000;
    const uint64_t now = clock_ns();
    if (now - c.looked_ns[station].load(std::memory_order_relaxed) < kEveryNs) return;
    c.looked_ns[station].store(now, std::memory_order_relaxed);
    c.wire->remove_if_dead(station);
}

// False: no room.
bool put(FrameRing& ring, char* data, uint32_t tag, const iovec* parts, uint32_t count,
         uint32_t length, bool checksum_good) {
    const uint64_t need = (sizeof(FrameSlot) + length + 63) & ~uint64_t(63);
    SharedLocked locked(ring.lock);
    uint64_t tail = ring.tail.load(std::memory_order_relaxed);
    const uint64_t to_end = ring.bytes - (tail & (ring.bytes - 1));
    const uint64_t skip = need > to_end ? to_end : 0;
    if (tail + skip + need - ring.head.load(std::memory_order_acquire) > ring.bytes) {
        return false;
    }
    if (skip) {
        reinterpret_cast<FrameSlot*>(data + (tail & (ring.bytes - 1)))->length = FrameSlot::kWrap;
        tail += skip;
    }
    FrameSlot* slot = reinterpret_cast<FrameSlot*>(data + (tail & (ring.bytes - 1)));
    slot->length = length;
    slot->tag = tag;
    slot->checksum_good = checksum_good;
    uint8_t* to = slot->bytes;
    for (uint32_t i = 0; i < count; i++) {
        std::memcpy(to, parts[i].iov_base, parts[i].iov_len);
        to += parts[i].iov_len;
    }
    ring.tail.store(tail + need, std::memory_order_seq_cst);
    return true;
}

uint32_t hash(const FlowFields& f) {
    uint64_t h = 0x9e3779b97f4a7c15;
    for (size_t i = 0; i + 8 <= sizeof(f); i += 8) {
        uint64_t w;
        std::memcpy(&w, reinterpret_cast<const char*>(&f) + i, 8);
        h = (h ^ w) * 0xff51afd7ed558ccd;
    }
    return uint32_t(h >> 40);
}

}  // namespace

void find_route(Context& c, const FlowFields& frame, uint32_t sender, uint32_t from, Route* out) {
    Best best;
    take_normal(c, frame, sender, from, &best);
    const bool multicast = frame.dst_mac[0] & 1, trapped = best.priority != kNoPriority;
    for_matching(c, frame, sender, from, [&](uint32_t s, const FlowRule& r, uint32_t qp) {
        const bool by_default = r.type == IBV_FLOW_ATTR_ALL_DEFAULT ||
                                (multicast && r.type == IBV_FLOW_ATTR_MC_DEFAULT);
        if (r.type == IBV_FLOW_ATTR_SNIFFER || (by_default && !trapped)) best.add(s, r, qp);
    });
    *out = best.route;
}

const Route& RouteCache::lookup(Context& c, const FlowFields& frame, uint32_t from) {
    // Zero is never current: the first look-up of an entry always searches.
    const uint32_t generation =
        c.wire->directory().flow_generation.load(std::memory_order_acquire) | 1u << 31;
    Entry& e = entries_[hash(frame) % kEntries];
    if (e.generation != generation || std::memcmp(&e.frame, &frame, sizeof(frame)) != 0) {
        find_route(c, frame, c.index, from, &e.route);
        e.frame = frame;
        e.generation = generation;
    }
    return e.route;
}

void deliver_frame(Context& c, const Route& route, const iovec* parts, uint32_t count,
                   uint32_t length, bool checksum_good) {
    for (uint32_t i = 0; i < route.count; i++) {
        const Target& t = route.targets[i];
        StationMap* map = c.wire->station(t.station);
        // What its rules take is lost, not for others: stations of one port go down one by one.
        if (!map || !(*map)->port_up.load(std::memory_order_relaxed)) continue;
        QpShared& qp = (*map)->qps[t.qp];
        const ibv_qp_state state = qp.state.load(std::memory_order_acquire);
        if (qp.use != QpUse::raw || !qp.frames || (state != IBV_QPS_RTR && state != IBV_QPS_RTS))
            continue;
        FrameRing& ring = *map->at<FrameRing>(qp.frames);
        if (ring.head.load(std::memory_order_relaxed) != ring.tail.load(std::memory_order_relaxed))
            look_whether_alive(c, t.station);
        if (!put(ring, reinterpret_cast<char*>(&ring + 1), t.tag, parts, count, length,
                 checksum_good)) {
            (*map)->dropped.fetch_add(1, std::memory_order_relaxed);
            continue;
        }
        wake_armed(c, *map, (*map)->cqs[qp.recv_cq], false);
    }
}

}  // namespace softhca
