// Reorder: text that arrived ahead of RCV.NXT, sorted and free of overlap, and the SACK blocks that report it
// (RFC 2018 section 4). Where segments overlap, text that is already held wins, except that a held segment lying wholly
// inside the new one is replaced by it. Owned by a Tcb, used under the shard lease.
//
// What a segment costs grows with the logarithm of what is held, whatever the peer sends: places are found through an
// index of levels (a skip list) in the frames' own scratch areas. Text at the end, the usual case, needs no search.
#pragma once

#include <cstdint>

#include "base/seq.h"
#include "pkt/packet.h"
#include "stack/tcp/receive_queue.h"
#include "wire/tcp_options.h"

namespace vma::tcp {

// The scratch area of a frame that Reorder holds.
struct HeldText {
    static constexpr unsigned kLevels = 3;
    RxText text;  // first: text_of() is the same place
    uint8_t level;
    PacketBuf* up[kLevels];  // the next frame of at least this level
};

struct Reorder {
    PacketQueue packets;
    uint32_t bytes = 0;
    uint32_t frames = 0;
    SackBlock blocks[4];  // most recently changed first
    uint8_t block_count = 0;
    uint64_t steps = 0;  // frames looked at in searches, ever

    bool empty() const { return frames == 0; }
    uint32_t charge() const { return bytes + frames * kFrameCharge; }
    // Takes the frame, whose RxText is set and lies above RCV.NXT. False: every byte was there already (the frame is
    // freed). `duplicate` is the part that was held, empty if none.
    bool insert(Packet packet, SackBlock& duplicate);
    // Moves text that has become in order to `queue`; returns the new RCV.NXT.
    Seq take_ready(Seq nxt, ReceiveQueue& queue);
    void clear();

  private:
    PacketBuf* index_head_[HeldText::kLevels] = {};
    PacketBuf* index_tail_[HeldText::kLevels] = {};
    uint32_t dice_ = 0;

    // The last frame that starts at `at` or before, null if none; `place` gets the same per level of the index.
    PacketBuf* last_until(Seq at, PacketBuf** place);
    uint8_t draw_level(const PacketBuf& frame);
    void link(PacketBuf& frame, PacketBuf* before, PacketBuf** place);
    // `place`: last_until() of something before it.
    void unlink(PacketBuf& frame, PacketBuf** place);
    void report(SackBlock block);
};

}  // namespace vma::tcp
