// SendBuffer: bytes from SND.UNA to the last one written, in order, owned until acknowledged.
//
//      una                nxt                 end
//       |---- in flight ---|---- not sent -----|
//
// Chunked: a payload slice handed out stays where it is until the bytes are acknowledged. Used under the shard lease.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "base/seq.h"
#include "stack/tcp/memory.h"

namespace vma::tcp {

struct SendBuffer {
    SendChunk* head = nullptr;
    SendChunk* tail = nullptr;
    // Where slices() was asked last: new text and repeated text each go forward, so that finding the place costs nothing.
    struct Hint {
        SendChunk* chunk = nullptr;
        Seq seq;  // of its first byte
    };
    Hint hints[2];       // the second is never before the first
    Seq start;           // sequence number of the first byte held
    uint32_t bytes = 0;  // held
    uint32_t limit = 0;  // bytes; writes stop here (SO_SNDBUF's meaning for the stack)

    Seq end() const { return start + bytes; }
    uint32_t room() const { return bytes >= limit ? 0 : limit - bytes; }

    // Appends up to room() bytes and returns how many: fewer than asked when full or out of memory.
    size_t append(TcpMemory& memory, const iovec* iov, size_t count);
    // Appends without regard to limit (restoring a handed-over queue). False: out of memory, some bytes may be in.
    bool append_all(TcpMemory& memory, const void* data, size_t n);
    // Frees bytes before `una` (una >= start).
    void acknowledge(TcpMemory& memory, Seq una);
    // Fills out with the slices of [from, from + n), at most `max`; returns the bytes covered.
    uint32_t slices(Seq from, uint32_t n, iovec* out, unsigned max, uint16_t* count);
    // Copies [from, from + n) out; for hand-back and tests.
    size_t copy_out(Seq from, void* out, size_t n) const;
    void clear(TcpMemory& memory);
};

}  // namespace vma::tcp
