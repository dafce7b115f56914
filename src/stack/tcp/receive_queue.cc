#include "stack/tcp/receive_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/order.h"

namespace vma::tcp {

bool merge_text(PacketBuf& to, const PacketBuf& from, RxText text) {
    RxText& last = text_of(to);
    if (text.len > kCopyBelow || !(last.end() == text.seq)) return false;
    const uint64_t at = uint64_t(last.offset) + last.len;
    if (at + text.len > to.room) return false;  // room is 0 for lent memory
    std::memcpy(to.data + at, from.data + text.offset, text.len);
    order_stores();
    last.len += text.len;
    return true;
}

void ReceiveQueue::append(Packet packet) {
    const RxText text = text_of(*packet);
    bytes += text.len;
    order_stores();
    PacketBuf* last = packets.back();
    if (last == nullptr || keeps_frames || !merge_text(*last, *packet, text)) {
        ++frames;
        packets.push_back(*packet.detach());
    }
    order_stores();  // RCV.NXT moves afterwards
}

size_t ReceiveQueue::peek(const iovec* iov, size_t count, size_t skip) {
    size_t done = 0, in_iov = 0, i = 0;
    for (PacketBuf* p = packets.front(); p != nullptr && i < count; p = packets.next(*p)) {
        const RxText& text = text_of(*p);
        if (skip >= text.len) {
            skip -= text.len;
            continue;
        }
        const uint8_t* from = p->data + text.offset + skip;
        size_t left = text.len - skip;
        skip = 0;
        while (left > 0 && i < count) {
            const size_t k = std::min(left, iov[i].iov_len - in_iov);
            if (k > 0) std::memcpy(static_cast<uint8_t*>(iov[i].iov_base) + in_iov, from, k);
            from += k;
            left -= k;
            done += k;
            in_iov += k;
            if (in_iov == iov[i].iov_len) {
                ++i;
                in_iov = 0;
            }
        }
    }
    return done;
}

void ReceiveQueue::consume(uint32_t n) {
    while (n > 0) {
        PacketBuf* p = packets.front();
        if (p == nullptr) return;
        RxText& text = text_of(*p);
        const uint32_t k = std::min(n, text.len);
        text.len -= k;  // first: the sum is wrong until all is done
        order_stores();
        text.offset += k;
        text.seq += k;
        order_stores();
        bytes -= k;
        n -= k;
        if (text.len > 0) return;
        --frames;
        drop_front();
    }
}

Packet ReceiveQueue::take_front() {
    PacketBuf* p = packets.pop_front();
    if (p == nullptr) return {};
    if (p == held_) held_ = nullptr;
    order_stores();
    bytes -= text_of(*p).len;
    --frames;
    return Packet(p);
}

void ReceiveQueue::replace_front(Packet packet) {
    Packet old(packets.pop_front());
    packets.push_front(*packet.detach());
}

void ReceiveQueue::hold_front(Packet& keeper) {
    held_ = front();
    held_->room = 0;
    keeper_ = &keeper;
}

bool ReceiveQueue::let_go() { return std::exchange(held_, nullptr) != nullptr; }

void ReceiveQueue::drop_front() {
    Packet gone(packets.pop_front());
    if (&*gone != held_) return;
    held_ = nullptr;
    *keeper_ = std::move(gone);
}

void ReceiveQueue::clear() {
    while (front()) drop_front();
    bytes = frames = 0;
}

}  // namespace vma::tcp
