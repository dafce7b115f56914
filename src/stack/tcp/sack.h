// Scoreboard: what has been sent and not yet acknowledged, as a sorted list of ranges that tile [SND.UNA, SND.NXT).
// RFC 2018 (SACK), RFC 6675 (pipe, loss marking). Each range keeps its own send time, which is what RACK needs.
// Bytes throughout; a FIN counts one. Ranges come from TcpMemory.
//
// What an ACK costs does not grow with the window, whatever its blocks say: a place is found through an index of levels
// (a skip list; sending and acknowledging in order hardly touch it), neighbours that are both sacked become one range, and
// loss by time looks at the oldest transmissions only, which have a queue of their own, as what waits to be repeated has.
// Only what happens once per recovery walks the list: a timeout, an undone recovery, a smaller path MTU.
#pragma once

#include <cstdint>

#include "base/seq.h"
#include "base/time.h"
#include "stack/tcp/memory.h"
#include "stack/tcp/segment.h"

namespace vma::tcp {

// Which queue of the scoreboard a range is in.
enum class TxQueue : uint8_t { none, flight, waiting };

struct TxRange {
    static constexpr unsigned kLevels = 3;
    TxRange* next = nullptr;  // by number
    TxRange* prev = nullptr;
    TxRange* q_next = nullptr;  // in `queue`
    TxRange* q_prev = nullptr;
    TxRange* up[kLevels] = {};  // the next range of at least this level
    Seq start, end;
    Instant sent;  // last transmission
    // At that moment, for rate samples: bytes delivered, when the last of them were, and when the sending interval began.
    uint64_t delivered = 0;
    Instant delivered_at, first_sent;
    uint32_t segments = 0;  // of a sacked range
    uint16_t mss = 0;       // bytes per wire segment of that transmission
    uint8_t level = 0;
    TxQueue queue = TxQueue::none;
    bool app_limited = false;
    bool sacked = false;
    bool lost = false;
    bool retransmitted =
        false;  // a retransmission is in flight; without `lost` it is a tail loss probe's
    bool ever_retransmitted = false;
    uint32_t len() const { return uint32_t(end - start); }
};

// RFC 8985 section 5.2: the segment sent last among those that were delivered.
struct Delivered {
    Instant sent;
    Seq end;
    // RACK_sent_after(): was `range` sent before this one?
    bool after(const TxRange& range) const {
        return sent > range.sent || (sent == range.sent && end > range.end);
    }
};

// What one acknowledgement changed. The caller sets the first group.
struct AckResult {
    Instant now;
    Duration min_rtt = Duration::max();  // of the connection, max(): unknown
    Seq fack;                            // highest number acknowledged or sacked before
    Seq recover;                         // recovery point, for `original_acked`

    uint32_t acked = 0;   // cumulatively, bytes
    uint32_t sacked = 0;  // newly selectively acknowledged, bytes
    uint32_t delivered =
        0;  // newly known to have arrived: acked without what was sacked before, and sacked
    bool retransmitted_acked = false;
    bool rtt_valid = false;   // some range sent once was acknowledged
    Instant rtt_sent;         // send time of the latest such range
    bool rack_valid = false;  // `rack` is set: RFC 8985 section 6.2 step 2
    Delivered rack;
    bool reordered = false;  // something never repeated was delivered below `fack`
    Seq reordered_at;        // the lowest such number
    // Of the newest segment delivered: start of the rate sample.
    bool rate_valid = false, rate_limited = false;
    uint64_t rate_delivered = 0;
    Instant rate_delivered_at, rate_sent, rate_first_sent;
    bool original_acked = false;  // something never repeated below `recover` was delivered (F-RTO)
};

struct Scoreboard {
    TxRange* head = nullptr;
    TxRange* tail = nullptr;
    uint32_t sacked = 0;           // bytes
    uint32_t sacked_segments = 0;  // the same in segments
    uint32_t lost = 0;             // bytes marked lost and not sacked
    uint32_t retransmitted = 0;    // bytes in flight again
    uint32_t waiting = 0;          // bytes lost and not in flight again
    uint32_t reno_sacked = 0;      // bytes that duplicate ACKs stand for when the peer has no SACK
    Seq highest_sacked;            // end of the highest block, valid if sacked > 0

    // Appends [start, end). False: no memory.
    bool sent(TcpMemory& memory, Seq start, Seq end, Instant now, uint64_t delivered, uint32_t mss);
    // The first `n` bytes of a range go out again; the rest, if any, is split off. False: no memory to split.
    bool resent(TcpMemory& memory, TxRange& range, uint32_t n, Instant now, uint64_t delivered,
                uint32_t mss);
    void acknowledge(TcpMemory& memory, Seq una, AckResult& out);
    // Applies one SACK block already known to lie in [una, nxt]. Splits happen on segment borders only, so that a peer
    // cannot make us keep a record per byte.
    void apply_sack(TcpMemory& memory, SackBlock block, AckResult& out);
    // Marks up to `n` bytes of the first unmarked range (NewReno partial ACK, RFC 6582). Returns bytes marked.
    uint32_t mark_head_lost(TcpMemory& memory, uint32_t n);
    // After a retransmission timeout: lost is what is not sacked and was sent at `sent_by` or before, and always the head
    // (RFC 8985 section 6.3); with `reneged` the sacked too (RFC 2018 section 8).
    void mark_lost_by_timeout(bool reneged, Instant sent_by);
    // RFC 8985 section 6.2 step 5: lost is what was sent before `newest` and more than `wait` ago. `wait_more` gets the
    // time after which all ranges not marked yet would be, zero if there is none; of more than kLook such ranges at least
    // that time. Returns the bytes marked; `again` those of them whose retransmission was lost.
    uint32_t mark_lost_by_time(const Delivered& newest, Duration wait, Instant now,
                               Duration& wait_more, uint32_t& again);
    // What was sent in segments larger than `mss` is lost, unless it is sacked. Returns bytes marked.
    uint32_t mark_larger_lost(uint32_t mss);
    // Spurious recovery: nothing is lost after all.
    void unmark_lost();
    // The last segment of what is in flight, cut off at a border of `mss`; null: nothing there, sacked, or no memory.
    TxRange* last_segment(TcpMemory& memory, uint32_t mss);
    // First range marked lost and not in flight again, or null.
    TxRange* next_lost() { return waiting_.head; }
    // Bytes believed to be in the network.
    uint32_t pipe(Seq una, Seq nxt) const;
    void clear(TcpMemory& memory);

  private:
    static constexpr unsigned kLook = 64;
    struct Queue {
        TxRange* head = nullptr;
        TxRange* tail = nullptr;
        void insert_after(TxRange* place, TxRange& range);  // null: at the front
        void remove(TxRange& range);
    };
    Queue flight_;   // by the time of the last transmission
    Queue waiting_;  // lost and not in flight again, by number (nearly, see enqueue_waiting)
    TxRange* index_head_[TxRange::kLevels] = {};
    TxRange* index_tail_[TxRange::kLevels] = {};
    uint32_t dice_ = 0x9e3779b9;

    Queue& queue_of(TxQueue which) { return which == TxQueue::flight ? flight_ : waiting_; }
    void leave_queue(TxRange& range);
    void enqueue(TxQueue which, TxRange* place, TxRange& range);
    void enqueue_waiting(TxRange& range);
    uint8_t draw_level();
    // The last range that starts before `at`; `before` gets the same per level of the index.
    TxRange* last_before(Seq at, TxRange** before) const;
    // Cuts `range` at `at` (inside it); returns the upper part. Null: no memory.
    TxRange* split(TcpMemory& memory, TxRange& range, Seq at);
    void remove(TcpMemory& memory, TxRange& range);
    void set_lost(TxRange& range);
    void set_in_flight_again(TxRange& range, bool again);
    // Out of all counters, before it is sacked or goes.
    void uncount(TxRange& range, uint32_t n);
    // A range that has just been sacked becomes one with sacked neighbours; returns what it is part of.
    TxRange* merge_sacked(TcpMemory& memory, TxRange& range);
};

}  // namespace vma::tcp
