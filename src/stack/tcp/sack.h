// Scoreboard: what has been sent and not yet acknowledged, as a sorted list of ranges that tile [SND.UNA, SND.NXT).
// RFC 2018 (SACK), RFC 6675 (pipe, loss marking). Each range keeps its own send time, which is what RACK needs.
// Bytes throughout; a FIN counts one. Ranges come from TcpMemory.
#pragma once

#include <cstdint>

#include "base/seq.h"
#include "base/time.h"
#include "stack/tcp/memory.h"
#include "stack/tcp/segment.h"

namespace vma::tcp {

struct TxRange {
    TxRange* next = nullptr;
    TxRange* prev = nullptr;
    Seq start, end;
    Instant sent;            // last transmission
    uint64_t delivered = 0;  // the connection's delivered count at that moment (rate samples)
    bool sacked = false;
    bool lost = false;
    bool retransmitted = false;  // a retransmission is in flight
    bool ever_retransmitted = false;
    uint32_t len() const { return uint32_t(end - start); }
};

// What one acknowledgement changed.
struct AckResult {
    uint32_t acked = 0;   // cumulatively, bytes
    uint32_t sacked = 0;  // newly selectively acknowledged, bytes
    bool retransmitted_acked = false;
    bool rtt_valid = false;  // some range sent once was acknowledged
    Instant rtt_sent;        // send time of the latest such range
};

struct Scoreboard {
    TxRange* head = nullptr;
    TxRange* tail = nullptr;
    uint32_t sacked = 0;         // bytes
    uint32_t lost = 0;           // bytes marked lost and not sacked
    uint32_t retransmitted = 0;  // bytes of lost ranges in flight again
    uint32_t reno_sacked = 0;    // bytes that duplicate ACKs stand for when the peer has no SACK
    Seq highest_sacked;          // end of the highest block, valid if sacked > 0

    // Appends [start, end). False: no memory.
    bool sent(TcpMemory& memory, Seq start, Seq end, Instant now, uint64_t delivered);
    // The first `n` bytes of a lost range go out again; the rest, if any, is split off. False: no memory to split.
    bool resent(TcpMemory& memory, TxRange& range, uint32_t n, Instant now, uint64_t delivered);
    void acknowledge(TcpMemory& memory, Seq una, AckResult& out);
    // Applies one SACK block already known to lie in [una, nxt]. Splits happen on mss borders only, so that a peer cannot
    // make us keep a record per byte.
    void apply_sack(TcpMemory& memory, SackBlock block, uint32_t mss, AckResult& out);
    // RFC 6675 IsLost() over all ranges. Returns bytes newly marked.
    uint32_t mark_lost(uint32_t mss);
    // Marks up to `n` bytes of the first unmarked range (NewReno partial ACK, RFC 6582). Returns bytes marked.
    uint32_t mark_head_lost(TcpMemory& memory, uint32_t n);
    // After a retransmission timeout: all that is not sacked is lost; with `reneged` the sacked too (RFC 2018 section 8).
    void mark_all_lost(bool reneged);
    // Retransmissions that left before `before` are lost too (the rule of RFC 8985 section 6.2 for them): something sent
    // after them has arrived. Returns bytes to repeat.
    uint32_t mark_retransmissions_lost(Instant before);
    // First range marked lost and not in flight again, or null.
    TxRange* next_lost() const;
    // Bytes believed to be in the network.
    uint32_t pipe(Seq una, Seq nxt) const;
    void clear(TcpMemory& memory);

  private:
    // Cuts `range` at `at` (inside it); returns the upper part. Null: no memory.
    TxRange* split(TcpMemory& memory, TxRange& range, Seq at);
    void unlink(TxRange& range);
};

}  // namespace vma::tcp
