// Actions: what the caller of the TCP core has to know or do after an entry returned. Small values, no callbacks.
#pragma once

#include <cstdint>

#include "stack/tcp/segment.h"

namespace vma::tcp {

// Event bits. They are edges: set when something changed during this call.
enum Event : uint32_t {
    kReadable = 1u << 0,    // bytes or end of stream can be read
    kWritable = 1u << 1,    // send-buffer room was freed
    kConnected = 1u << 2,   // reached ESTABLISHED (or CLOSE_WAIT straight from SYN_RECEIVED)
    kPeerClosed = 1u << 3,  // FIN received: RDHUP
    kFailed = 1u << 4,      // connection is dead, `error` says why
    kReleasable = 1u << 5,  // state is CLOSED: the Tcb may be freed once the socket lets go of it
    kTimeWait = 1u << 6,    // entered TIME_WAIT: a TimeWait record may take over
    kUrgent = 1u << 7,      // new urgent pointer: SIGURG, exceptional condition
    kOutput = 1u << 8,      // next_segment() may have something
    kAllAcked = 1u << 9,  // everything written, FIN included, is acknowledged (linger, error queue)
    kAckNow =
        1u
        << 10,  // pull before the next segment arrives: its ACK must not be merged into this one's
};

struct Actions {
    uint32_t events = 0;
    int error = 0;  // errno value with kFailed
    bool has_reply =
        false;  // `reply` is to be sent to the sender of the segment, from its own tuple
    SegmentHead reply;

    void set(uint32_t bits) { events |= bits; }
    bool has(uint32_t bit) const { return (events & bit) != 0; }
    void answer(const SegmentHead& head) {
        reply = head;
        has_reply = true;
    }
};

}  // namespace vma::tcp
