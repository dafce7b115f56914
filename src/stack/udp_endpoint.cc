#include "stack/udp_endpoint.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace vma {

UdpEndpoint::~UdpEndpoint() {
    purge();
    fresh_hook.unlink();
    group_hook.unlink();
}

DropReason UdpEndpoint::deliver(Packet packet, const UdpRxInfo& info) {
    if (!admits(info.source)) {
        counters.dropped_peer++;
        return DropReason::peer_mismatch;
    }
    const uint32_t bytes = info.end - info.next;
    const uint32_t count =
        info.segment_size == 0 ? 1 : (bytes + info.segment_size - 1) / info.segment_size;
    // One datagram may pass the limit, so with room for k charges k + 1 are taken.
    uint32_t fits = 0;
    if (charged_ <= receive_limit_)
        fits = std::min(count, (receive_limit_ - charged_) / info.charge + 1);
    if (fits < count) [[unlikely]] {
        counters.dropped_full += count - fits;
        counters.dropped_full_bytes += bytes - fits * info.segment_size;
    }
    if (fits == 0) return DropReason::receive_queue_full;

    UdpRxInfo* kept = new (packet->scratch) UdpRxInfo(info);
    if (fits < count) kept->end = info.next + fits * info.segment_size;
    kept->whole = whole_trains_ && info.segment_size != 0;
    kept->drops = tells_drops_ ? uint32_t(counters.dropped_full - (count - fits)) : 0;
    charged_ += fits * info.charge;
    queued_ += fits;
    counters.rx_datagrams += fits;
    counters.rx_bytes += kept->end - kept->next;
    counters.queued_max = std::max(counters.queued_max, queued_);
    counters.charged_max = std::max(counters.charged_max, charged_);
    queue_.push_back(*packet.detach());
    return DropReason::none;
}

uint32_t UdpEndpoint::segment_bytes(const UdpRxInfo& info) {
    const uint32_t left = info.end - info.next;
    return info.segment_size == 0 ? left : std::min<uint32_t>(left, info.segment_size);
}

uint32_t UdpEndpoint::first_size(const UdpRxInfo& info) {
    return info.whole ? info.end - info.next : segment_bytes(info);
}

bool UdpEndpoint::peek(UdpDatagram& out) {
    if (!readable()) return false;
    PacketBuf* buf = head().front();
    const UdpRxInfo& info = buf->as<UdpRxInfo>();
    out.info = &info;
    out.meta = &buf->meta;
    out.payload = {buf->data + info.next, first_size(info)};
    return true;
}

uint32_t UdpEndpoint::next_size() {
    return readable() ? first_size(head().front()->as<UdpRxInfo>()) : 0;
}

void UdpEndpoint::consume() {
    if (readable()) consume_from(head());
}

// Books what would be read next of the first packet of `from` as read.
void UdpEndpoint::advance(PacketQueue& from) {
    UdpRxInfo& info = from.front()->as<UdpRxInfo>();
    if (&from == &passed_) {
        passed_count_--;
        passed_bytes_ -= info.end - info.next;
    }
    do {
        info.next += segment_bytes(info);
        charged_ -= info.charge;
        queued_--;
    } while (info.whole && info.next < info.end);
}

void UdpEndpoint::consume_from(PacketQueue& from) {
    advance(from);
    const UdpRxInfo& info = from.front()->as<UdpRxInfo>();
    if (info.next == info.end) Packet(from.pop_front()).reset();
}

Packet UdpEndpoint::keep_front(PacketPool& pool, UdpRxInfo& info) {
    return readable() ? take_front(head(), pool, info) : Packet();
}

void UdpEndpoint::pass(Packet packet, const UdpRxInfo& info) {
    new (packet->scratch) UdpRxInfo(info);
    queued_++;
    passed_count_++;
    passed_bytes_ += info.end - info.next;
    passed_.push_back(*packet.detach());
}

Packet UdpEndpoint::take_front(PacketQueue& from, PacketPool& pool, UdpRxInfo& info) {
    PacketBuf* buf = from.front();
    if (buf == nullptr) return {};
    info = buf->as<UdpRxInfo>();
    const uint32_t size = first_size(info), charged = charged_;
    Packet kept;
    if (buf->lender != nullptr || info.next + size != info.end) {
        kept = pool.take(std::max(size, 1u));
        if (!kept) return kept;
        if (size) std::memcpy(kept->data, buf->data + info.next, size);
        kept->len = size;
        kept->meta = buf->meta;
        consume_from(from);
        info.next = 0;
        info.end = size;
    } else {
        advance(from);
        kept = Packet(from.pop_front());
    }
    info.charge = charged - charged_;
    info.segment_size = 0;
    info.whole = false;
    charged_ = charged;
    return kept;
}

void UdpEndpoint::purge() {
    for (PacketQueue* from : {&passed_, &queue_})
        while (!from->empty()) consume_from(*from);
    while (first_stamp()) consume_stamp();
}

bool UdpEndpoint::queue_stamp(Packet frame, const TxStamp& stamp) {
    const uint32_t charge = udp_charge(frame->len);
    if (charged_ + charge >= receive_limit_) return false;
    auto* const kept = new (frame->scratch) TxStamp(stamp);
    kept->charge = charge;
    charged_ += charge;
    stamps_.push_back(*frame.detach());
    return true;
}

void UdpEndpoint::consume_stamp() {
    PacketBuf* const first = stamps_.pop_front();
    charged_ -= first->as<TxStamp>().charge;
    release_packet(first);
}

}  // namespace vma
