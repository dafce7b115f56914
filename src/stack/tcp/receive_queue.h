// ReceiveQueue: text in order, not yet read. Zero copy: it holds the frames that brought the text. Small texts are copied
// behind the previous one where its frame has room, so that a peer sending bytes singly cannot pin a frame per byte.
// Owned by a Tcb, used under the shard lease.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "base/seq.h"
#include "pkt/packet.h"

namespace vma::tcp {

// What a queued PacketBuf's scratch area says: bytes [offset, offset + len) from `data` have numbers from `seq`.
struct RxText {
    Seq seq;
    uint32_t offset;
    uint32_t len;
    Seq end() const { return seq + len; }
};
inline RxText& text_of(PacketBuf& buf) { return buf.as<RxText>(); }

inline constexpr uint32_t kCopyBelow = 512;    // bytes: texts up to this size are merged by copying
inline constexpr uint32_t kFrameCharge = 256;  // bytes accounted for a held frame beyond its text

// Copies the text of `from` behind that of `to` if it follows it there and fits; true if done.
bool merge_text(PacketBuf& to, const PacketBuf& from, RxText text);

// Text that the application took with its frames and has not given back: it fills the window as if it were unread.
struct KeptText {
    uint32_t bytes = 0;
    uint32_t frames = 0;
    uint32_t charge() const { return bytes + frames * kFrameCharge; }
};

struct ReceiveQueue {
    PacketQueue packets;
    uint32_t bytes = 0;         // text
    uint32_t frames = 0;        // records held
    bool keeps_frames = false;  // each text stays in the frame that brought it, which has its stamp

    uint32_t charge() const { return bytes + frames * kFrameCharge; }
    // Takes the frame; its RxText must be set and follow the last one.
    void append(Packet packet);
    // Copies from `skip` bytes behind the front; does not consume. Returns bytes copied.
    size_t peek(const iovec* iov, size_t count, size_t skip = 0);
    // Drops the first n bytes (n <= bytes), giving frames back.
    void consume(uint32_t n);
    // First frame with its text for zero-copy reading, null when empty; take_front() hands the frame over.
    PacketBuf* front() { return packets.front(); }
    Packet take_front();
    // The same text in other memory.
    void replace_front(Packet packet);
    // Somebody looks at the front: if it is dropped meanwhile it goes into `keeper`, not home. Nothing is merged into it.
    void hold_front(Packet& keeper);
    // The look is over. False: the front is another one by now.
    bool let_go();
    void clear();

  private:
    void drop_front();
    PacketBuf* held_ = nullptr;  // the front
    Packet* keeper_ = nullptr;
};

}  // namespace vma::tcp
