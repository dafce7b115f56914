// Steps that the files of the machine share; not for callers of the machine (tcp.h is).
#pragma once

#include "stack/tcp/tcp.h"

namespace vma::tcp {

// segment_arrives.cc / fast_path.cc
bool fast_path(Tcb& t, SegView& seg, Instant now, Actions& out, Verdict& verdict);
Verdict arrives_in_syn_sent(Tcb& t, SegView& seg, Instant now, Actions& out);

// What one ACK brought.
struct AckNews {
    AckResult result;
    uint32_t flight_before = 0;
    uint32_t lost = 0;            // bytes marked lost because of it
    bool advanced = false;        // SND.UNA moved
    bool duplicate = false;       // RFC 5681 section 2
    bool dsack_of_probe = false;  // the tail loss probe arrived twice
    bool rate_sampled = false;    // the ACK gave a sample of the delivery rate
    bool timer_set = false;       // the reordering timer runs: leave it alone
};

// recovery.cc
// The acknowledgement part of an acceptable segment: SND.UNA, window, scoreboard, loss recovery, congestion window.
void process_ack(Tcb& t, const SegView& seg, Instant now, Actions& out);
void update_window(Tcb& t, const SegView& seg);
// An RTO expired: what was sent long enough ago is presumed lost.
void enter_timeout_recovery(Tcb& t, Instant now);
void enter_fast_recovery(Tcb& t, Instant now);
// ECN: a reduction without loss.
void enter_cwr(Tcb& t, Instant now);
// RFC 6937: the congestion window after `delivered` bytes arrived; `good`: SND.UNA moved and nothing was lost.
void reduce_by_prr(Tcb& t, uint32_t delivered, bool good);
// Starts the retransmission timer anew from now, or stops it when nothing is in flight.
void rearm_rto(Tcb& t, Instant now);

// rate.cc
// Books `delivered` bytes and takes a sample of the delivery rate, if there is one.
bool sample_rate(Tcb& t, const AckResult& result, uint32_t delivered, Instant now);
// A range was sent (again): what its sample will start from.
void stamp_rate(Tcb& t, TxRange& range, bool first_in_flight, Instant now);
// Sending stopped for want of text.
void note_app_limited(Tcb& t);
// What the sender waits for from now on.
void note_busy(Tcb& t, Instant now);

// path.cc
// An RTO expired: large segments may be what does not get through.
void suspect_black_hole(Tcb& t, Instant now, Actions& out);

// The search begins, if it is to from the start.
void start_size_search(Tcb& t, Instant now);
// Size of a probe to send now instead of new text, 0: none. `later` is set when one shall be and must wait for room.
uint32_t probe_size(Tcb& t, Instant now, bool& later);
// The probe arrived, or was lost; true: it was lost, and what is to be repeated is no sign of congestion.
void probe_arrived(Tcb& t);
bool probe_lost(Tcb& t);
// What is marked lost goes out again at the same window: it was too large, not too much.
void repeat_without_blame(Tcb& t);

// cookies.cc
// ISN of the SYN-ACK for `seg` and the low bits of its timestamp, RFC 4987 section 3.6.
Seq make_cookie(const OpenParams& open, const SegView& syn, Instant now);
// The record that a returned cookie stands for; false: it is none of ours.
bool open_cookie(const OpenParams& open, const TcpConfig& cfg, const SegView& ack, Instant now,
                 HalfOpen& record);
// The peer's options, hidden in the timestamp of the SYN-ACK.
uint32_t cookie_timestamp(const HalfOpen& h, Instant now);

// rack.cc
// What was delivered moves RACK's newest segment, the reordering seen and its window (RFC 8985 section 6.2 steps 1 to 4).
void rack_delivered(Tcb& t, const AckResult& result, Instant now);
struct RackLoss {
    uint32_t marked = 0;   // bytes
    uint32_t again = 0;    // of them, repeated before
    bool waiting = false;  // the reordering timer runs
};
// Step 5; arms the reordering timer when something may be lost soon.
RackLoss rack_detect(Tcb& t, Instant now);
// A recovery is over, or was undone: how long a widened window stands.
void rack_recovered(Tcb& t, bool undone);
// Arms the tail loss probe if there may be one (section 7.2); `restart`: the RTO would start anew.
bool schedule_probe(Tcb& t, Instant now, bool restart);
// An ACK moved SND.UNA: the probe's timer or the RTO, from now.
void restart_timer(Tcb& t, Instant now);
// When the RTO of the oldest segment expires.
Instant rto_at(const Tcb& t);
// Another timer had its turn: the RTO for what remains of it.
void continue_rto(Tcb& t, Instant now);
void probe_answered(Tcb& t, const SegView& seg, const AckNews& news, Instant now);

// undo.cc
// Before a reduction: what taking it back would restore.
void remember_for_undo(Tcb& t);
// `n` bytes went out again.
void note_repeated(Tcb& t, uint32_t n, Instant now);
// The peer reports `block` as a duplicate.
void note_duplicate_report(Tcb& t, SackBlock block);
// Each true when the reduction was taken back. At the end of a recovery:
bool undo_at_end(Tcb& t, const SegView& seg);
// At a partial ACK; true also while repeated text is in flight and nothing more shall be marked:
bool undo_partial(Tcb& t, const SegView& seg);
// All that was repeated came twice:
bool undo_by_duplicates(Tcb& t);
// In timeout recovery; `proven` by F-RTO:
bool undo_timeout(Tcb& t, const SegView& seg, bool proven, Instant now);

// receive.cc
Verdict take_text(Tcb& t, SegView& seg, Instant now, Actions& out);
// text_end: SEG.SEQ + text length as they arrived, the number of a FIN.
Verdict check_fin(Tcb& t, const SegView& seg, Seq text_end, Instant now, Actions& out);
// Text that starts at RCV.NXT and fits the window.
Verdict take_in_order(Tcb& t, SegView& seg, Instant now, Actions& out);
// Window field of the next segment; moves RCV.ADV.
uint16_t offer_window(Tcb& t);
// The window that offer_window() would announce, in bytes.
uint32_t window_to_offer(const Tcb& t);
// Books an ACK as sent: every outgoing segment with ACK does.
void acked_now(Tcb& t, unsigned segments);
void challenge_ack(Tcb& t, Instant now);
void enter_quickack(Tcb& t, uint16_t segments);
// Tells TcpMemory what the frames held cost; after anything that took some in or gave some back.
void charge_frames(Tcb& t);
// Application consumed bytes: window update, buffer autotuning.
void after_read(Tcb& t, uint32_t n, Instant now, Actions& out);
uint8_t scale_for(uint32_t window);

// timers.cc
void stop_timers(Tcb& t);
void arm(Tcb& t, Rtx kind, Instant at);
// Progress: a series of expiries is over.
void end_series(Tcb& t, Instant now);
inline void disarm(Tcb& t) { arm(t, Rtx::none, Instant::never()); }
void start_keepalive(Tcb& t, Instant now);

// close.cc
// The end: frees nothing, stops timers, tells the caller.
void enter_closed(Tcb& t, int error, Actions& out);
void enter_time_wait(Tcb& t, Instant now, Actions& out);

// handshake.cc
// MSS and scaling agreed; congestion window at its start.
void negotiated(Tcb& t, uint16_t peer_mss);
void connected(Tcb& t, Instant now, Actions& out);
// Options and fields that a SYN or SYN-ACK of this connection carries.
SegmentHead syn_head(const Tcb& t, bool with_ack, Instant now);

}  // namespace vma::tcp
