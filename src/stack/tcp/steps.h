// Steps that the files of the machine share; not for callers of the machine (tcp.h is).
#pragma once

#include "stack/tcp/tcp.h"

namespace vma::tcp {

// segment_arrives.cc / fast_path.cc
bool fast_path(Tcb& t, SegView& seg, Instant now, Actions& out, Verdict& verdict);
Verdict arrives_in_syn_sent(Tcb& t, SegView& seg, Instant now, Actions& out);

// recovery.cc
// The acknowledgement part of an acceptable segment: SND.UNA, window, scoreboard, loss recovery, congestion window.
void process_ack(Tcb& t, const SegView& seg, Instant now, Actions& out);
void update_window(Tcb& t, const SegView& seg);
// An RTO expired: everything is presumed lost.
void enter_timeout_recovery(Tcb& t, Instant now);
// Restarts or stops the retransmission timer according to what is in flight.
void rearm_rto(Tcb& t, Instant now);

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
// Application consumed bytes: window update, buffer autotuning.
void after_read(Tcb& t, uint32_t n, Instant now, Actions& out);
uint8_t scale_for(uint32_t window);

// timers.cc
void stop_timers(Tcb& t);
void arm(Tcb& t, Rtx kind, Instant at);
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
