// TCP_REPAIR: the kernel side of moving a live TCP connection, into a kernel socket (hand-back: restore, finish) and out of
// one (adoption: checkpoint, release). The trap table of the packet-ring measurements and process-model.md section 5 are
// the specification; man 7 tcp does not document it.
//
// Needs CAP_NET_ADMIN (and CAP_NET_RAW to inject frames) in the calling process, which need not be the one whose socket it
// is: descriptors, plain records and byte spans only, no state in between. Thread rules: one mover per socket at a time.
#pragma once

#include "base/bytes.h"
#include "base/result.h"
#include "stack/tcp/snapshot.h"

namespace vma {

struct RepairQueues {
    ByteView unacked;  // [snd_una, snd_nxt): sent, not acknowledged
    ByteView unsent;   // [snd_nxt, snd_end)
    ByteView unread;   // before rcv_nxt
};

// Options of a socket that a move changes, as they were before (options.cc has the list). Plain data.
struct RepairOptions {
    static constexpr unsigned kCount = 20;
    // SO_PRIORITY and SO_MARK: not everybody may set them to anything.
    static constexpr uint32_t kPrivileged = 1u << 6 | 1u << 7;
    int32_t value[kCount] = {};
    uint32_t known = 0;  // bit i: value[i] was read
    int32_t linger[2] = {};
    char congestion[16] = {};
};

// One of the saved options as getsockopt reported it; false when it is not one of them or was not known.
bool saved_option(const RepairOptions& saved, int level, int name, int* value);

// A connection read out of the kernel. The bytes are in the caller's memory: first what is to send, [snd_una, snd_end), of
// which the first `sent` have been sent, then snapshot.unread bytes.
struct RepairImage {
    tcp::Snapshot snapshot;
    RepairOptions options;
    uint32_t to_send = 0, sent = 0;
    uint16_t path_mtu = 0;  // as the kernel knows it
    RepairQueues queues(ByteView room) const {
        return {room.subspan(0, sent), room.subspan(sent, to_send - sent),
                room.subspan(to_send, snapshot.unread)};
    }
};

// ---- What may move, by state (methods.cc)

struct MoveMethod {
    tcp::State state;
    enum Back : uint8_t {
        never,     // this state cannot be put into a kernel socket
        twin,      // nothing to put: the twin as it is
        listener,  // the twin listens already
        restore,   // TCP_REPAIR, then the steps below in this order
    } back;
    // After leaving repair mode. `shut`: our FIN again, by shutdown(). `peer_fin`: the peer's, as a frame.
    enum Step : uint8_t { none, shut, peer_fin } after[2];
    bool adopt;  // may be read out of the kernel
};
// The row of a state; every state has one.
const MoveMethod& move_method(tcp::State state);

// ---- Into the kernel

// Restores the connection into `fd`, a fresh or bound and never connected TCP socket, and leaves repair mode on: the caller
// takes the flow off the ring, then calls repair_finish(), or repair_cancel(). On an error the socket is as before, out of
// repair mode; one that had no port may have it now. EPERM: no capability. EINVAL: a state that cannot move.
// EADDRNOTAVAIL: the tuple is in use.
Status repair_restore(int fd, const tcp::Snapshot& snapshot, const RepairQueues& queues,
                      RepairOptions& saved);
// Undo of restore: the socket is unconnected again, without a segment on the wire.
void repair_cancel(int fd, const RepairOptions& saved);
// Leaves repair mode (the kernel probes the peer), puts options back, writes what was not sent yet, delivers the peer's FIN
// and ours. An error: bytes that were not sent yet did not fit and are lost (memory limit of the kernel).
Status repair_finish(int fd, const tcp::Snapshot& snapshot, const RepairQueues& queues,
                     const RepairOptions& saved);
// An IPv4 packet with a TCP segment for a connection of this host that was caught on its way: to the kernel, as if it had
// just come, with its checksum completed. Needs CAP_NET_RAW; without it the peer repeats the segment.
Status repair_inject(ByteView packet);

// ---- Out of the kernel

// Bytes that repair_checkpoint() will need at most while nobody writes to the socket.
size_t repair_room(int fd);
// Enters repair mode and reads the connection out, again and again until nothing changes: a socket in repair mode goes on
// receiving. The flow is steered away from the kernel before and what the kernel sends for it is dropped. Repair mode stays
// on; repair_release() or repair_resume() follows. On an error the socket is as before. EPERM: no capability. ENOTCONN: a
// state that cannot move. EOPNOTSUPP: something that only the kernel does with this connection (urgent data, ULP, MPTCP, ECN,
// microsecond timestamps, error queue). ENOBUFS: room is too small. EAGAIN: it does not hold still.
Status repair_checkpoint(int fd, RepairImage& image, ByteSpan room);
// Undo of checkpoint, after the flow was given back to the kernel: it goes on and probes the peer.
void repair_resume(int fd, const RepairImage& image);
// The socket becomes an unconnected one without a segment on the wire: of one that was bound the port stays, one that was
// accepted loses it. Options stay. On an error repair mode is still on and nothing has changed.
Status repair_release(int fd, const RepairImage& image);

// ---- Who is at the other end

// Sequence numbers of the first byte of text each way. The two ends of a connection have them in common, crosswise, and who has not
// seen its segments does not know them. They never change, whatever is under way.
struct FirstBytes {
    uint32_t sent = 0, received = 0;
};
// Of an established connection to which nobody writes at this moment: it is in repair mode for some microseconds, and nothing of it
// is changed. Errors: EPERM, ENOTCONN; EAGAIN: it does not hold still. Of one that was put into its socket by repair_restore() they
// are other numbers than at the other end.
Result<FirstBytes> repair_first_bytes(int fd);

}  // namespace vma
