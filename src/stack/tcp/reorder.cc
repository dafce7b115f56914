#include "stack/tcp/reorder.h"

namespace vma::tcp {

bool Reorder::insert(Packet packet, SackBlock& duplicate) {
    RxText& text = text_of(*packet);
    duplicate = {text.seq, text.seq};
    // From the back: text ahead of a hole usually comes in order itself.
    PacketBuf* before = packets.back();
    while (before != nullptr && text_of(*before).seq > text.seq) before = packets.prev(*before);
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
        bytes -= held.len;
        --frames;
        after->hook.unlink();
        Packet gone(after);
    }
    if (text.len == 0) return false;
    bytes += text.len;
    report({text.seq, text.end()});
    if (before != nullptr && merge_text(*before, *packet, text)) return true;
    ++frames;
    PacketBuf* fresh = packet.detach();
    if (before == nullptr)
        packets.push_front(*fresh);
    else
        packets.insert_after(*before, *fresh);
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
        p->hook.unlink();
        --frames;
        bytes -= text.len;
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
    bytes = frames = 0;
    block_count = 0;
}

}  // namespace vma::tcp
