#include "stack/reassembly4.h"

#include <cstring>
#include <new>

#include "stack/udp_endpoint.h"
#include "wire/ethernet.h"

namespace vma {

struct Reassembly4::Piece {
    PacketBuf* next;
    uint32_t begin, end;      // place in the datagram's payload
    uint32_t payload_offset;  // of `begin`, from PacketBuf::data
    uint8_t header_len;       // IPv4 header in front of the payload
    bool starts_run;          // not appended to the bytes before it as it came
};

Reassembly4::Piece& Reassembly4::piece(PacketBuf& buf) { return buf.as<Piece>(); }

Reassembly4::Reassembly4(PacketPool& pool, uint64_t secret, ReassemblyLimits limits)
    : pool_(pool), limits_(limits), secret_(secret) {
    for (Datagram& d : records_) spare_.push_back(d);
}

Reassembly4::BucketList& Reassembly4::bucket(uint64_t addresses, uint32_t id_protocol) {
    uint64_t h = (addresses ^ secret_) * 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 32 ^ id_protocol) * 0xd6e8feb86659fd93ull;
    return buckets_[(h >> 40) % kBuckets];
}

Reassembly4::Datagram* Reassembly4::find(uint64_t addresses, uint32_t id_protocol) {
    BucketList& list = bucket(addresses, id_protocol);
    for (Datagram* d = list.front(); d != nullptr; d = list.next(*d)) {
        if (d->addresses == addresses && d->id_protocol == id_protocol) return d;
    }
    return nullptr;
}

Reassembly4::Datagram& Reassembly4::open(uint64_t addresses, uint32_t id_protocol, Instant now) {
    if (spare_.empty()) {
        counters_.evicted++;
        close(*age_.front());
    }
    Datagram& d = *spare_.pop_front();
    d.addresses = addresses;
    d.id_protocol = id_protocol;
    d.total = d.received = d.charge = 0;
    d.ecn_seen = 0;
    d.expires = now + limits_.lifetime;
    d.first = d.last = nullptr;
    bucket(addresses, id_protocol).push_back(d);
    age_.push_back(d);
    datagrams_++;
    return d;
}

void Reassembly4::close(Datagram& d) {
    for (PacketBuf* p = d.first; p != nullptr;) {
        PacketBuf* next = piece(*p).next;
        release_packet(p);
        p = next;
    }
    d.first = d.last = nullptr;
    bytes_ -= d.charge;
    datagrams_--;
    d.bucket_hook.unlink();
    d.age_hook.unlink();
    spare_.push_back(d);
}

Reassembly4::Datagram* Reassembly4::oldest_of(uint32_t source, const Datagram& except) {
    for (Datagram* d = age_.front(); d != nullptr; d = age_.next(*d)) {
        if (d != &except && d->source() == source) return d;
    }
    return nullptr;
}

// False: `keep` alone would pass the limits.
bool Reassembly4::make_room(Datagram& keep, uint32_t charge) {
    uint32_t from_source = charge;
    for (Datagram* d = age_.front(); d != nullptr; d = age_.next(*d)) {
        if (d->source() == keep.source()) from_source += d->charge;
    }
    while (from_source > limits_.source_bytes) {
        Datagram* d = oldest_of(keep.source(), keep);
        if (d == nullptr) return false;
        from_source -= d->charge;
        counters_.evicted++;
        close(*d);
    }
    while (bytes_ + charge > limits_.total_bytes) {
        Datagram* d = age_.front() == &keep ? age_.next(keep) : age_.front();
        if (d == nullptr) return false;
        counters_.evicted++;
        close(*d);
    }
    return true;
}

// Puts the first `size` payload bytes of the fragment into its place. none: it is in the chain. fragment_duplicate: it is not,
// but may have told the length. Anything else: the datagram must go.
DropReason Reassembly4::place(Datagram& d, Packet& fragment, const Ipv4View& ip, uint32_t size) {
    const uint32_t begin = ip.header.fragment_offset, end = begin + size;
    if (!ip.header.more_fragments) {
        if (d.total != 0 && d.total != end) return DropReason::reassembly_overlap;
        if (d.last != nullptr && piece(*d.last).end > end) return DropReason::reassembly_overlap;
        d.total = end;
    } else if (d.total != 0 && end > d.total) {
        return DropReason::reassembly_overlap;
    }

    PacketBuf* before = nullptr;  // last piece that ends at or before `begin`
    PacketBuf* after = nullptr;
    if (d.last != nullptr && piece(*d.last).end <= begin) {
        before = d.last;  // in order, the common case
    } else {
        after = d.first;
        while (after != nullptr && piece(*after).end <= begin) {
            before = after;
            after = piece(*after).next;
        }
    }
    if (after != nullptr && piece(*after).begin < end) {
        PacketBuf* p = after;
        for (PacketBuf* next = piece(*p).next; next != nullptr && !piece(*next).starts_run;
             next = piece(*p).next)
            p = next;
        if (begin < piece(*after).begin || end > piece(*p).end)
            return DropReason::reassembly_overlap;
        counters_.duplicates++;
        return DropReason::fragment_duplicate;
    }

    const uint32_t charge = udp_charge(fragment->len);
    if (!make_room(d, charge)) {
        counters_.evicted++;
        return DropReason::reassembly_memory;
    }
    const auto payload_offset = uint32_t(ip.payload.data() - fragment->data);
    if (fragment->lender != nullptr) {
        Packet copy = pool_.copy_of(*fragment);
        if (!copy) return DropReason::no_buffer;
        fragment = std::move(copy);
    }
    const bool appended = after == nullptr && before != nullptr && piece(*before).end == begin;
    new (fragment->scratch)
        Piece{after, begin, end, payload_offset, ip.header.header_len, !appended};
    PacketBuf* buf = fragment.detach();
    (before != nullptr ? piece(*before).next : d.first) = buf;
    if (after == nullptr) d.last = buf;
    d.received += size;
    d.charge += charge;
    bytes_ += charge;
    d.ecn_seen |= uint8_t(1u << ip.header.ecn());
    return DropReason::none;
}

Packet Reassembly4::assemble(Datagram& d, DropReason& why) {
    constexpr uint8_t kNotEct = 1, kCe = 8;
    const PacketBuf& first = *d.first;
    const Piece& head = piece(*d.first);
    const uint32_t header_len = head.header_len;
    why = DropReason::fragment_shape;
    if (header_len + d.total > kIpv4MaxPacket) return {};
    if ((d.ecn_seen & kNotEct) != 0 && d.ecn_seen != kNotEct) return {};
    why = DropReason::no_buffer;
    Packet whole = pool_.take(kEthernetSize + header_len + d.total);
    if (!whole) return {};

    const uint8_t* ip_bytes = first.data + head.payload_offset - header_len;
    Ipv4View ip = *parse_ipv4_quoted(ByteView(ip_bytes, header_len));
    ip.header.total_len = uint16_t(header_len + d.total);
    ip.header.more_fragments = ip.header.dont_fragment = false;
    if ((d.ecn_seen & kCe) != 0) ip.header.tos |= 3;
    uint8_t* out = whole->data;
    std::memcpy(out, first.data, 12);
    store_be16(out + 12, ethertype::ipv4);
    emit_ipv4(ip.header, ByteSpan(out + kEthernetSize, header_len), ip.options);
    out += kEthernetSize + header_len;
    for (PacketBuf* p = d.first; p != nullptr; p = piece(*p).next) {
        const Piece& at = piece(*p);
        std::memcpy(out + at.begin, p->data + at.payload_offset, at.end - at.begin);
    }
    whole->len = kEthernetSize + header_len + d.total;
    whole->meta = first.meta;
    whole->meta.checksum_good = false;
    whole->meta.gso_size = 0;
    why = DropReason::none;
    return whole;
}

Packet Reassembly4::add(Packet fragment, const Ipv4View& ip, Instant now, DropReason& why) {
    counters_.fragments++;
    deadline_reached(now);
    auto size = uint32_t(ip.payload.size());
    if (ip.header.more_fragments) size &= ~7u;
    const uint64_t addresses = uint64_t(ip.header.src) << 32 | ip.header.dst;
    const uint32_t id_protocol = uint32_t(ip.header.id) << 8 | ip.header.protocol;
    Datagram* d = find(addresses, id_protocol);
    if (size == 0 || ip.header.header_len + ip.header.fragment_offset + size > kIpv4MaxPacket) {
        if (d != nullptr) close(*d);
        why = DropReason::fragment_shape;
        return {};
    }
    if (d == nullptr) d = &open(addresses, id_protocol, now);
    why = place(*d, fragment, ip, size);
    if (why == DropReason::fragment_duplicate) return {};
    Packet whole;
    if (why == DropReason::none) {
        if (d->received != d->total) return {};
        whole = assemble(*d, why);
        if (whole) counters_.datagrams++;
    } else if (why == DropReason::reassembly_overlap) {
        counters_.overlaps++;
    }
    close(*d);
    return whole;
}

Instant Reassembly4::deadline() const {
    // List has no const access; reading the front changes nothing.
    const Datagram* oldest = const_cast<AgeList&>(age_).front();
    return oldest == nullptr ? Instant::never() : oldest->expires;
}

uint32_t Reassembly4::deadline_reached(Instant now) {
    uint32_t n = 0;
    for (Datagram* d = age_.front(); d != nullptr && d->expires <= now; d = age_.front(), n++)
        close(*d);
    counters_.timeouts += n;
    return n;
}

void Reassembly4::purge() {
    while (Datagram* d = age_.front()) close(*d);
}

Packet reassemble(Reassembly4& reassembly, Packet fragment, const Ipv4View& ip, Instant now,
                  DropCounters& drops, DropReason& why) {
    drops.add(DropReason::reassembly_timeout, reassembly.deadline_reached(now));
    const uint64_t evicted = reassembly.counters().evicted;
    Packet whole = reassembly.add(std::move(fragment), ip, now, why);
    const bool itself = why == DropReason::reassembly_memory;  // the caller counts that one
    drops.add(DropReason::reassembly_memory, reassembly.counters().evicted - evicted - itself);
    return whole;
}

}  // namespace vma
