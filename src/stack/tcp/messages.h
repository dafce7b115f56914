// One message, one segment (TcpConfig::messages): where the messages end that have been written and not sent yet. A segment takes
// no text beyond such an end; one that is longer than a segment is cut as ever and shares its last one with nobody. What is sent
// keeps its ends by itself: each transmission is a range of the scoreboard, and ranges are repeated alone.
#pragma once

#include <cstdint>

#include "base/seq.h"

namespace vma::tcp {

struct Tcb;

struct MessageMarks {
    static constexpr uint32_t kMost =
        1022;  // not sent yet; then writes stop, as with a full send buffer
    uint32_t first = 0, count = 0;
    Seq ends[kMost];

    Seq front() const { return ends[first]; }
    Seq back() const { return ends[(first + count - 1) % kMost]; }
    void push(Seq end) { ends[(first + count++) % kMost] = end; }
    void pop() {
        first = (first + 1) % kMost;
        --count;
    }
};
static_assert(sizeof(MessageMarks) == 4096);

// New text that may go into one plan: all of it, or what is left of a message. Not whole: its end has not been written.
struct Piece {
    uint32_t bytes = 0;
    bool whole = true;
};

// TcpConfig::messages was changed, or the connection is new. What waits to be sent is a message then.
void follow_messages(Tcb& t);
// May another one be written? Not when kMost are waiting, or there is no memory.
bool has_message_room(Tcb& t);
// The text up to `end` is being sent. True: a message ends there.
bool pass_messages(Tcb& t, Seq end);
// The messages of a connection that goes on in `t`.
void carry_messages(Tcb& t, const Tcb& from);

}  // namespace vma::tcp
