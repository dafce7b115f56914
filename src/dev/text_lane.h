// TextLane: what a ring between two processes of one host offers a stream beside frames: its text by itself, without a header of
// addresses, numbers and sums to make and to look at. What the lane has taken arrives, in order with the frames of the same
// pair, while the neighbour lives: for the sender it counts as acknowledged. What it has taken and the neighbour has not read can
// be had back, for a stream that leaves.
//
// A stream has a tag at each end, the reader's own. Thread rules: the ring's.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "base/seq.h"
#include "dev/ring.h"

namespace vma {

// In front of the text, in host byte order: both ends are one machine.
struct TextHead {
    static constexpr uint32_t kPushed = 1u << 31;  // the sender has no more just now
    uint32_t tag = 0;                              // the reader's, and kPushed
    Seq seq;                                       // of the first byte
    uint32_t name() const { return tag & ~kPushed; }
};
static_assert(sizeof(TextHead) == 8);

class TextLane {
  public:
    static constexpr uint32_t kMostBytes = 65472;  // of text in one record

    // A tag for what comes to the steered flow `key` from where its route leads; `owner` comes back from text_owner(). 0: no
    // route, or no tag left.
    virtual uint32_t open_text(const FlowKey& key, void* owner) = 0;
    // What still comes for it is dropped and counted.
    virtual void close_text(uint32_t tag) = 0;
    // Nothing that comes for it is read, and nothing behind it from the same neighbour; and on.
    virtual void hold_text(uint32_t tag, bool hold) = 0;
    // Does such text wait? What waits first from its neighbour is looked at.
    virtual bool has_text(uint32_t tag) const = 0;
    // Whose text a received packet has, by its PacketMeta::flow_tag: the packet is a TextHead and text. Null: of no one any more.
    virtual void* text_owner(uint32_t tag) const = 0;

    // Where text for the flow goes, for the two below; 0: nowhere.
    virtual uint64_t text_way(const FlowKey& key) const = 0;
    // One record of text, 1 to kMostBytes. 0; EAGAIN: no room yet; ENETDOWN: the neighbour is gone.
    virtual int send_text(uint64_t way, TextHead head, const iovec* text, unsigned count,
                          uint32_t bytes) = 0;
    // What was sent to `tag` with numbers in [from, until) and may not have been read, appended to `out`. False: not all of it is
    // there.
    virtual bool unread_text(uint64_t way, uint32_t tag, Seq from, Seq until,
                             std::vector<uint8_t>& out) const = 0;

  protected:
    ~TextLane() = default;
};

}  // namespace vma
