// Snapshot: what it takes to move a live connection to or from the kernel (TCP_REPAIR) or another shard. Numbers here,
// queue contents beside it. Out-of-order text is not part of it: the peer repeats it. SYN states, LISTEN and TIME_WAIT
// cannot be moved.
#pragma once

#include "base/bytes.h"
#include "base/result.h"
#include "pkt/pool.h"
#include "stack/tcp/tcp.h"

namespace vma::tcp {

struct Snapshot {
    Endpoint local, remote;
    State state = State::CLOSED;
    bool passive = false;
    // Send queue: [snd_una, snd_nxt) sent, [snd_nxt, snd_end) not; a FIN of ours, if sent, is number snd_end.
    Seq snd_una, snd_nxt, snd_end;
    bool fin_queued = false, fin_sent = false;
    // Receive queue: `unread` bytes before rcv_nxt. If the peer's FIN was consumed, rcv_nxt is its number (restore a
    // kernel socket with this, then deliver the FIN to it).
    Seq rcv_nxt;
    uint32_t unread = 0;
    bool peer_fin = false;
    // TCP_REPAIR_WINDOW's fields.
    Seq snd_wl1;
    uint32_t snd_wnd = 0, max_window = 0;
    uint32_t rcv_wnd = 0;
    Seq rcv_wup;
    // TCP_REPAIR_OPTIONS.
    uint16_t peer_mss = 536;
    uint8_t snd_wscale = 0, rcv_wscale = 0;
    bool scaling = false, sack = false, timestamps = false;
    bool ecn = false;  // agreed; a kernel socket cannot be told, it goes on without
    // TCP_TIMESTAMP: the value our next segment would carry (milliseconds), and the peer's last one.
    uint32_t ts_value = 0, ts_recent = 0;
    // Measurements, zero when unknown.
    Duration srtt{0}, rttvar{0};
    uint32_t cwnd = 0, ssthresh = 0;
};

// EINVAL in a state that cannot be moved.
Result<Snapshot> export_snapshot(const Tcb& t, Instant now);
// Copies bytes of the queues: unacknowledged and unsent ones from sequence number `from`; unread ones `skip` bytes from
// the front. Return bytes copied.
size_t export_unacked(const Tcb& t, Seq from, void* to, size_t n);
size_t export_unread(Tcb& t, size_t skip, void* to, size_t n);

// A fresh Tcb from a snapshot: `unacked` has snd_end - snd_una bytes, `unread` s.unread. What was in flight is taken as
// sent just now. EINVAL: the snapshot contradicts itself. ENOMEM: no memory; release(t) then.
Status import_snapshot(Tcb& t, const Snapshot& s, ByteView unacked, ByteView unread,
                       const TcpConfig& cfg, TcpMemory& memory, PacketPool& pool, Instant now);

// ---- From one shard to another of the same process, where more is known than a snapshot has.
// Would a snapshot lose nothing that the peer or the application could see? Else it is soon.
bool is_quiet(const Tcb& t);
// Into a Tcb that import_snapshot() has just made of the quiet `from`: measurements, congestion control, who owes an
// acknowledgement, counters.
void carry_over(Tcb& t, const Tcb& from);

}  // namespace vma::tcp
