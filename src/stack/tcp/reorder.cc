#include "stack/tcp/reorder.h"

namespace vma::tcp {
namespace {

HeldText& held_text(PacketBuf& frame) { return frame.as<HeldText>(); }

}  // namespace

PacketBuf* Reorder::last_until(Seq at, PacketBuf** place) {
    PacketBuf* last = packets.back();
    if (last == nullptr || text_of(*last).seq <= at) {
        for (unsigned i = 0; i < HeldText::kLevels; ++i) place[i] = index_tail_[i];
        return last;
    }
    PacketBuf* here = nullptr;
    for (unsigned i = HeldText::kLevels; i-- > 0;) {
        PacketBuf* n = here ? held_text(*here).up[i] : index_head_[i];
        for (; n != nullptr && text_of(*n).seq <= at; n = held_text(*n).up[i], ++steps) here = n;
        place[i] = here;
    }
    PacketBuf* n = here ? packets.next(*here) : packets.front();
    for (; n != nullptr && text_of(*n).seq <= at; n = packets.next(*n), ++steps) here = n;
    return here;
}

// One frame in sixteen is in the first level, one in sixteen of these in the second ...
uint8_t Reorder::draw_level(const PacketBuf& frame) {
    // Where the frame lies is nothing that a peer knows: it must not be able to choose which frames are in the index.
    if (dice_ == 0) dice_ = uint32_t((reinterpret_cast<uintptr_t>(&frame) >> 6) * 2654435761u) | 1;
    dice_ ^= dice_ << 13;
    dice_ ^= dice_ >> 17;
    dice_ ^= dice_ << 5;
    uint8_t level = 0;
    for (uint32_t d = dice_; level < HeldText::kLevels && (d & 15) == 0; d >>= 4) ++level;
    return level;
}

void Reorder::link(PacketBuf& frame, PacketBuf* before, PacketBuf** place) {
    ++frames;
    if (before == nullptr)
        packets.push_front(frame);
    else
        packets.insert_after(*before, frame);
    HeldText& held = held_text(frame);
    held.level = draw_level(frame);
    for (unsigned i = 0; i < held.level; ++i) {
        PacketBuf*& from = place[i] ? held_text(*place[i]).up[i] : index_head_[i];
        held.up[i] = from;
        from = &frame;
        if (held.up[i] == nullptr) index_tail_[i] = &frame;
    }
}

void Reorder::unlink(PacketBuf& frame, PacketBuf** place) {
    const HeldText& held = held_text(frame);
    for (unsigned i = 0; i < held.level; ++i) {
        (place[i] ? held_text(*place[i]).up[i] : index_head_[i]) = held.up[i];
        if (index_tail_[i] == &frame) index_tail_[i] = place[i];
    }
    bytes -= held.text.len;
    --frames;
    frame.hook.unlink();
}

bool Reorder::insert(Packet packet, SackBlock& duplicate) {
    RxText& text = text_of(*packet);
    duplicate = {text.seq, text.seq};
    PacketBuf* place[HeldText::kLevels];
    PacketBuf* before = last_until(text.seq, place);
    if (before != nullptr && text_of(*before).end() > text.seq) {
        const RxText& held = text_of(*before);
        duplicate.right = Seq::min(held.end(), text.end());
        if (held.end() >= text.end()) return false;
        const uint32_t cut = uint32_t(held.end() - text.seq);
        text.seq += cut;
        text.offset += cut;
        text.len -= cut;
    }
    for (;;) {
        PacketBuf* after = before ? packets.next(*before) : packets.front();
        if (after == nullptr || text_of(*after).seq >= text.end()) break;
        const RxText held = text_of(*after);
        if (duplicate.left == duplicate.right)
            duplicate = {held.seq, Seq::min(held.end(), text.end())};
        if (held.end() > text.end()) {
            text.len = uint32_t(held.seq - text.seq);
            break;
        }
        unlink(*after, place);
        Packet gone(after);
    }
    if (text.len == 0) return false;
    bytes += text.len;
    report({text.seq, text.end()});
    if (before != nullptr && merge_text(*before, *packet, text)) return true;
    link(*packet.detach(), before, place);
    return true;
}

void Reorder::report(SackBlock block) {
    uint8_t kept = 0;
    SackBlock next[4];
    for (uint8_t i = 0; i < block_count; ++i) {
        const SackBlock& b = blocks[i];
        if (b.left <= block.right && block.left <= b.right) {
            block.left = Seq::min(b.left, block.left);
            block.right = Seq::max(b.right, block.right);
        } else if (kept < 3) {
            next[kept++] = b;
        }
    }
    blocks[0] = block;
    for (uint8_t i = 0; i < kept; ++i) blocks[i + 1] = next[i];
    block_count = uint8_t(kept + 1);
}

Seq Reorder::take_ready(Seq nxt, ReceiveQueue& queue) {
    while (PacketBuf* p = packets.front()) {
        RxText& text = text_of(*p);
        if (text.seq > nxt) break;
        PacketBuf* first[HeldText::kLevels] = {};
        unlink(*p, first);
        Packet owned(p);
        if (text.end() <= nxt) continue;
        const uint32_t cut = uint32_t(nxt - text.seq);
        text.seq += cut;
        text.offset += cut;
        text.len -= cut;
        nxt = text.end();
        queue.append(static_cast<Packet&&>(owned));
    }
    uint8_t kept = 0;
    for (uint8_t i = 0; i < block_count; ++i)
        if (blocks[i].right > nxt) blocks[kept++] = blocks[i];
    block_count = kept;
    return nxt;
}

void Reorder::clear() {
    while (PacketBuf* p = packets.pop_front()) Packet gone(p);
    for (unsigned i = 0; i < HeldText::kLevels; ++i) index_head_[i] = index_tail_[i] = nullptr;
    bytes = frames = 0;
    block_count = 0;
}

}  // namespace vma::tcp
