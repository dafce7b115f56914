// The statistics page: one file per process, <VMA_STATS_SHMEM_DIR>/vmastat.<pid>, mode 0640, that viewers read from
// outside. Written by that process only; a viewer writes one word, on a page of its own (Control).
//
//   0        Header             page 0: identity, versions, the directory of segments
//   4096     Control            page 1: words of the viewers
//   8192 ..  segments           tables of rows, appended as they are needed, never moved or freed
//
// Every number is in host byte order and unsigned unless said otherwise; counters are u64 and only grow; times are
// nanoseconds. A row is a seqlock: `seq` is odd while it is being written, a copy is good when seq was even and the same
// before and after (reader.h). A row of a kind that a viewer does not know is skipped by its segment's row_size; any
// change of what is written here is a new kVersion.
//
// Neither side trusts the page: the library follows nothing that it reads back, and uses the words of Control only as numbers
// that have changed or that are clamped first; a viewer checks each size and offset before it follows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/drop.h"
#include "base/ip_addr.h"
#include "base/reason.h"
#include "stats/histogram.h"

namespace vma::stats {

inline constexpr char kMagic[8] = {'V', 'M', 'A', 'S', 'T', 'A', 'T', '\n'};
inline constexpr uint32_t kVersion = 8;
inline constexpr size_t kHeaderBytes = 4096;
inline constexpr size_t kControlOffset = 4096;
inline constexpr size_t kFirstSegment = 8192;
inline constexpr uint32_t kMaxSegments = 64;
inline constexpr char kFilePrefix[] = "vmastat.";

// sockets, rings and waits are always there; the others are listings, written when a viewer asks for them (Verb::list).
enum class SegmentKind : uint32_t {
    sockets = 1,
    rings,
    waits,
    latencies,
    options,
    routes,
    neighbors,
    flows,
    memberships,
    rules,
    end
};
inline constexpr uint32_t list_bit(SegmentKind kind) { return 1u << unsigned(kind); }

struct Segment {
    SegmentKind kind{};
    uint32_t row_size = 0;  // bytes
    uint64_t offset = 0;    // of the first row from the start of the file, a multiple of 64
    uint64_t rows = 0;
};

enum class PageState : uint32_t { in_making = 0, ready = 1, ended = 2 };

// What a viewer can ask for. A viewer writes the parameters in Control, then a value one above the one it finds into
// Control::asked of the verb; the library does it and copies that value to Header::answered.
enum class Verb : uint32_t {
    // Fresh counters. They and the queues are published while the last request is younger than kReaderActive; states,
    // reasons and addresses at once, always.
    counters,
    reload,  // the rules file again; also looked at by every call of socket()
    zero,  // the counters of the sockets in Control::zero_fds, and all of rings and waits, start at 0 in the views
    log,   // log_level and log_details
    dump,  // state of descriptor dump_fd (0: of all) into the log at dump_level
    list,  // the listings in list_kinds (list_bit) anew
    latency,  // histograms of the sockets in latency_fds on (latency_on 1) or off
    capture,  // frames into the capture file (capture.h): capture_on the viewer's number; or 0, off
    count
};
inline constexpr unsigned kVerbs = unsigned(Verb::count);

struct Header {
    char magic[8] = {};
    uint32_t version = 0;
    uint32_t header_size = 0;  // sizeof(Header)
    PageState state = PageState::in_making;
    uint32_t pid = 0;            // in the process's own pid namespace
    uint64_t pid_namespace = 0;  // inode; pids of other namespaces mean nothing to a viewer
    uint64_t start_ticks = 0;    // proc(5) stat field 22: tells a recycled pid
    char program[64] = {};       // short name, NUL padded
    char library[32] = {};       // version text
    uint32_t reasons = 0;        // Reason::count of the library
    uint32_t drop_reasons = 0;   // DropReason::count: entries of RingRow::drops in use
    uint32_t publishing = 0;     // 1: there is an internal thread, which answers requests
    uint32_t segment_count = 0;  // written last when a segment is added
    uint32_t descriptors =
        0;  // higher numbers are never offloaded (Reason::fd_limit); 0: not known yet
    uint32_t unused = 0;
    uint64_t answered[kVerbs] = {};
    uint64_t published_ns = 0;               // CLOCK_MONOTONIC of the last publication, 0: none yet
    int32_t log_level = 0, log_details = 0;  // in force, as LogLevel
    int32_t capture_error = 0;               // errno of the last Verb::capture
    uint32_t listing_cut = 0;                // list_bit of listings that did not fit
    // The rules file, as it was last read again; written before the answer.
    uint32_t rules_generation = 0;  // counts changes since the start: reloads and add_conf_rule
    uint32_t rules_count = 0;
    uint32_t rules_ok = 0;  // 0: the file could not be used, the rules before it stay in force
    uint32_t rules_unused = 0;
    char rules_text[512] = {};  // what the log said last, NUL padded; empty: not read again yet
    Segment segments[kMaxSegments];
};

struct FdRange {
    int32_t first = 0, last = -1;  // both included
};
inline constexpr unsigned kFdRanges = 16;
struct FdRanges {
    FdRange range[kFdRanges] = {};  // unused ones are empty
    bool has(int fd) const {
        for (const FdRange& r : range)
            if (fd >= r.first && fd <= r.last) return true;
        return false;
    }
};

// Written by viewers.
struct Control {
    uint64_t asked[kVerbs] = {};
    int32_t log_level = 0, log_details = 0;  // kKeep: as it is
    int32_t dump_fd = 0, dump_level = 0;
    uint32_t list_kinds = 0;
    uint32_t latency_on = 0;
    uint32_t capture_on = 0;  // any number of the viewer's own: one at a time
    uint32_t capture_bytes = 0;
    FdRanges zero_fds, latency_fds;
};
inline constexpr int32_t kKeep = -2;  // no LogLevel

// Values of SocketIdentity::path; who serves the socket.
enum class Path : uint8_t { undecided = 0, offloaded = 1, kernel = 2 };

struct Address {
    uint8_t bytes[16] = {};  // IpAddr::bytes
    uint32_t scope = 0;
    uint16_t port = 0;  // host order
    uint16_t unused = 0;
};

// What a socket is; written whenever it changes.
struct SocketIdentity {
    int32_t fd = -1;  // a descriptor of it when this was written
    uint16_t domain = 0, type = 0;
    uint16_t protocol = 0;
    Path path = Path::undecided;
    Reason reason = Reason::none;  // none: everything by rings
    uint16_t nonblocking = 0;
    uint16_t tcp_state =
        0;  // 0 CLOSED ... 10 TIME_WAIT, in the order of RFC 9293; kernel sockets: not kept
    uint64_t inode = 0;   // of the kernel twin: proc(5) fd/ and net/{udp,tcp}
    uint64_t cookie = 0;  // SO_COOKIE
    uint64_t rings = 0;   // bit i: served by ring row i
    Address local, remote;
    // Threads that last received and sent; 0: not known, as they are noted while latencies are.
    uint32_t rx_thread = 0, tx_thread = 0;
    uint32_t multicast_interface = 0;  // IPv4 address in network order, of IP_MULTICAST_IF; 0: none
    uint16_t multicast_loop = 0;       // IP_MULTICAST_LOOP of an IPv4 UDP socket
    uint16_t unused = 0;
};

// Counters of SocketCounters (sock/socket.h) and the queues. UDP's receive queue is in bytes charged against SO_RCVBUF,
// TCP's are unread and unacknowledged bytes.
struct SocketNumbers {
    uint64_t rx_packets = 0, rx_bytes = 0, rx_eagain = 0, rx_errors = 0;
    uint64_t rx_os_packets = 0, rx_os_bytes = 0;
    uint64_t tx_packets = 0, tx_bytes = 0, tx_eagain = 0, tx_errors = 0;
    uint64_t tx_os_packets = 0, tx_os_bytes = 0;
    uint64_t poll_hit = 0, poll_miss = 0;
    uint64_t rx_queue_packets = 0, rx_queue_bytes = 0, rx_queue_limit = 0;
    uint64_t rx_queue_packets_max = 0, rx_queue_bytes_max = 0;
    uint64_t rx_dropped_full = 0, rx_dropped_bytes = 0;  // datagrams, their payload
    uint64_t tx_queue_bytes = 0, tx_retransmits = 0;
    // Of the extra API: datagrams or segments given out without a copy, of these with the program now, shown to a receive
    // callback; sends that stopped in front of the ring.
    uint64_t rx_zcopy = 0, rx_kept = 0, rx_callback = 0, tx_dummy = 0;
    // To the rings of the thread or CPU that uses it, and how often that was due and not possible.
    uint64_t rx_migrations = 0, tx_migrations = 0, migrations_refused = 0;
};

// What a connection that can send nothing more is waiting for.
enum class Waiting : uint8_t {
    none,         // it is sending
    application,  // nothing is left to send
    peer_window,
    congestion,  // the congestion window is full
    pacing,
    neighbor,  // the next hop's address is not resolved
    ring,      // the ring has no room for the next segment
    nagle,     // a last short segment waits for an acknowledgement or for more (Nagle, TCP_CORK)
    handshake,
    count
};
inline const char* waiting_name(Waiting w) {
    static constexpr const char* names[] = {"",           "application", "peer_window",
                                            "congestion", "pacing",      "neighbor",
                                            "ring",       "nagle",       "handshake"};
    return w < Waiting::count ? names[unsigned(w)] : "";
}

// Of an offloaded connection, as TCP_INFO has them; `here` 0: there is none. Times in microseconds, windows and sums in bytes,
// rates in bytes a second, the rest in segments.
struct TcpNumbers {
    uint8_t here = 0, ca_state = 0;  // Linux's TCP_CA_*
    Waiting waiting = Waiting::none;
    uint8_t snd_wscale = 0, rcv_wscale = 0, backoff = 0;
    uint8_t options = 0;  // TCPI_OPT_*: 1 timestamps, 2 SACK, 4 window scaling, 8 ECN
    uint8_t unused = 0;
    char congestion_control[8] = {};
    uint32_t snd_cwnd = 0, snd_ssthresh = 0, snd_mss = 0, rcv_mss = 0, pmtu = 0;
    uint32_t rtt = 0, rttvar = 0, min_rtt = 0, rto = 0, rcv_rtt = 0;
    uint32_t unacked = 0, sacked = 0, lost = 0, retrans = 0, reordering = 0, total_rto = 0;
    uint32_t notsent_bytes = 0, snd_wnd = 0, rcv_wnd = 0, rcv_space = 0;
    uint64_t bytes_acked = 0, bytes_received = 0, bytes_sent = 0, bytes_retrans = 0;
    uint64_t segs_in = 0, segs_out = 0;
    uint64_t delivery_rate = 0, pacing_rate = 0;  // pacing_rate UINT64_MAX: not paced
    uint64_t busy = 0, rwnd_limited = 0, sndbuf_limited = 0;
};

// `base`: numbers as they were when a viewer last asked for zeroes; the counters themselves only grow.
struct alignas(64) SocketRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    SocketIdentity id;
    SocketNumbers numbers;
    SocketNumbers base;
    TcpNumbers tcp;
};

// Row i is the i-th ring that the process opened.
struct RingNumbers {
    uint64_t rx_frames = 0, rx_bytes = 0, tx_frames = 0, tx_bytes = 0;
    uint64_t rx_dropped = 0, tx_refused = 0, wakeups = 0;
    uint64_t tcp_memory = 0;   // bytes that connections of this ring hold
    uint64_t tcp_refused = 0;  // writes and texts refused for want of memory
    uint64_t tcp_pressed = 0;  // times that the process came under memory pressure
    // The queue of received frames.
    uint64_t polls = 0, empty_polls = 0;  // looks that found frames, and none
    uint64_t drained_max = 0;             // most frames found by one look
    uint64_t backlog = 0;  // arrived and not looked at, in the unit the ring counts in
    // The pool of packet buffers.
    uint64_t pool_in_use = 0, pool_free = 0, pool_bytes = 0, pool_high_water = 0, pool_refused = 0;
    uint64_t arena_bytes = 0, arena_limit = 0;  // memory of the shard, and what it may become
    // TCP of the ring; the last four are how many there are now.
    uint64_t tcp_segments_in = 0, tcp_segments_out = 0, tcp_resets = 0, tcp_frames_refused = 0;
    uint64_t tcp_connections = 0, tcp_half_open = 0, tcp_time_wait = 0, tcp_listeners = 0;
    // Packets that programs have without a copy, and those that were never given back before their socket was closed.
    uint64_t kept = 0, kept_reclaimed = 0;
};
inline constexpr size_t kDropSlots = 96;

struct RingIdentity {
    uint32_t ifindex = 0;
    uint32_t open = 0;        // 0: closed again
    char interface[16] = {};  // name, NUL padded
    char kind[16] = {};       // "packet", "xdp" ...
};

struct alignas(64) RingRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    RingIdentity id;
    RingNumbers numbers, base;        // base: as SocketRow::base
    uint64_t drops[kDropSlots] = {};  // by DropReason
};

// poll and ppoll, select and pselect of the process, and each epoll set with members of ours.
enum class WaitKind : uint32_t { poll = 1, select = 2, epoll = 3 };
struct WaitIdentity {
    WaitKind kind{};
    int32_t fd = -1;  // of the epoll set
};
struct WaitNumbers {
    uint64_t poll_hit = 0, poll_miss = 0;  // waits that ended while polling, and by a sleep
    uint64_t timeouts = 0, errors = 0;
    uint64_t ready = 0, os_ready = 0;  // descriptors that were ready: offloaded, kernel
    uint64_t polling_ns = 0;           // time spent polling
};
struct alignas(64) WaitRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    WaitIdentity id;
    WaitNumbers numbers, base;
};

// Times of one socket, in nanoseconds: from the arrival of a frame (for TCP of the newest text) at the ring to the read that
// returned it, and from a send call to the ring's having its frame.
struct alignas(64) LatencyRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    int32_t fd = -1;
    uint32_t unused = 0;
    uint64_t inode = 0;
    Histogram receive, send;
};

// A setting in force.
struct alignas(64) OptionRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    uint32_t origin =
        0;  // Origin of config/options.h: 0 built in, 1 socketxtreme, 2 profile, 3 file, 4 environment
    uint32_t unused = 0;
    char name[48] = {};
    char value[192] = {};  // cut to fit
};

// An IPv4 route as the library knows it, once for each of its hops.
struct alignas(64) RouteRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    uint32_t table = 0, type = 0;  // RTN_* of rtnetlink(7)
    Address destination, gateway, source;
    uint32_t prefix = 0, metric = 0, mtu = 0, ifindex = 0;
    char interface[16] = {};
};

struct alignas(64) NeighborRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    Address address;
    uint32_t ifindex = 0;
    uint32_t usable = 0;  // frames can be sent to it
    uint8_t mac[8] = {};
    char interface[16] = {};
    char state[16] = {};  // as ip-neighbour(8) writes it
};

// What a tuple leads to in the library's tables.
enum class FlowKind : uint32_t { connection = 1, listener, half_open, time_wait, udp };
struct alignas(64) FlowRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    FlowKind kind{};
    uint32_t ring = 0;
    uint32_t tcp_state = 0;  // as SocketIdentity
    uint32_t orphan = 0;     // no socket of the program has it any more
    Address local, remote;
};

struct alignas(64) MembershipRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    int32_t fd = -1;
    uint32_t ifindex = 0;
    Address group, source;  // source: zero, any
};

// A rule in force, in the order in which the rules are asked.
enum class RuleUse : uint32_t {
    deciding = 1,
    other_program,    // its block is for another program or application id
    other_transport,  // sdp and sa: read, and nothing is done with them
    covered           // an earlier rule takes all that this one could match
};
struct alignas(64) RuleRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    RuleUse use{};
    uint32_t line = 0;        // in its file; 0: added at run time
    uint32_t covered_by = 0;  // line of that rule
    uint32_t unused = 0;
    uint64_t matches = 0;  // how often it decided
    char text[160] = {};   // as in the file, cut to fit
};

static_assert(sizeof(Header) <= kHeaderBytes && sizeof(Control) <= kFirstSegment - kControlOffset);
static_assert(unsigned(DropReason::count) <= kDropSlots);
static_assert(std::is_trivially_copyable_v<SocketRow> && std::is_trivially_copyable_v<RingRow>);
// A difference here is a change of the layout.
static_assert(sizeof(Segment) == 24 && sizeof(SocketIdentity) == 104 && sizeof(SocketRow) == 832);
static_assert(sizeof(RingRow) == 1344 && sizeof(WaitRow) == 128 && sizeof(LatencyRow) == 4160);

inline Address to_address(const Endpoint& e) {
    Address a;
    std::memcpy(a.bytes, e.addr.bytes.data(), sizeof a.bytes);
    a.scope = e.addr.scope;
    a.port = e.port;
    return a;
}
inline Endpoint to_endpoint(const Address& a) {
    Endpoint e;
    std::memcpy(e.addr.bytes.data(), a.bytes, sizeof a.bytes);
    e.addr.scope = a.scope;
    e.port = a.port;
    return e;
}

}  // namespace vma::stats
