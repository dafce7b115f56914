// Reorder: text that arrived ahead of RCV.NXT, sorted and free of overlap, and the SACK blocks that report it
// (RFC 2018 section 4). Where segments overlap, text that is already held wins, except that a held segment lying wholly
// inside the new one is replaced by it. Owned by a Tcb, used under the shard lease.
#pragma once

#include <cstdint>

#include "base/seq.h"
#include "pkt/packet.h"
#include "stack/tcp/receive_queue.h"
#include "wire/tcp_options.h"

namespace vma::tcp {

struct Reorder {
    PacketQueue packets;
    uint32_t bytes = 0;
    uint32_t frames = 0;
    SackBlock blocks[4];  // most recently changed first
    uint8_t block_count = 0;

    bool empty() const { return frames == 0; }
    uint32_t charge() const { return bytes + frames * kFrameCharge; }
    // Takes the frame, whose RxText is set and lies above RCV.NXT. False: every byte was there already (the frame is
    // freed). `duplicate` is the part that was held, empty if none.
    bool insert(Packet packet, SackBlock& duplicate);
    // Moves text that has become in order to `queue`; returns the new RCV.NXT.
    Seq take_ready(Seq nxt, ReceiveQueue& queue);
    void clear();

  private:
    void report(SackBlock block);
};

}  // namespace vma::tcp
