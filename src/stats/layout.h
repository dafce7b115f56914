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
// that have changed; a viewer checks each size and offset before it follows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/drop.h"
#include "base/ip_addr.h"
#include "base/reason.h"

namespace vma::stats {

inline constexpr char kMagic[8] = {'V', 'M', 'A', 'S', 'T', 'A', 'T', '\n'};
inline constexpr uint32_t kVersion = 3;
inline constexpr size_t kHeaderBytes = 4096;
inline constexpr size_t kControlOffset = 4096;
inline constexpr size_t kFirstSegment = 8192;
inline constexpr uint32_t kMaxSegments = 64;
inline constexpr char kFilePrefix[] = "vmastat.";

enum class SegmentKind : uint32_t { sockets = 1, rings = 2 };

struct Segment {
    SegmentKind kind{};
    uint32_t row_size = 0;  // bytes
    uint64_t offset = 0;    // of the first row from the start of the file, a multiple of 64
    uint64_t rows = 0;
};

enum class PageState : uint32_t { in_making = 0, ready = 1, ended = 2 };

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
    uint64_t answered = 0;       // Control::request that the last publication answers
    uint64_t published_ns = 0;   // CLOCK_MONOTONIC of that publication, 0: none yet
    // The rules file, as it was last read again; written before rules_answered.
    uint64_t rules_answered = 0;    // Control::reload that this is the answer to
    uint32_t rules_generation = 0;  // counts changes since the start: reloads and add_conf_rule
    uint32_t rules_count = 0;
    uint32_t rules_ok = 0;  // 0: the file could not be used, the rules before it stay in force
    uint32_t rules_unused = 0;
    char rules_text[512] = {};  // what the log said last, NUL padded; empty: not read again yet
    Segment segments[kMaxSegments];
};

// Written by viewers.
struct Control {
    // A viewer that wants fresh counters stores a value one above the one it finds. Counters and queues are published
    // while the last change is younger than kReaderActive; states, reasons and addresses at once, always.
    uint64_t request = 0;
    // Likewise, to have the rules file read again. Looked at by the internal thread in the turns it makes anyway, and by
    // every call of socket().
    uint64_t reload = 0;
};

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
    uint64_t rx_queue_packets_max = 0, rx_dropped_full = 0;
    uint64_t tx_queue_bytes = 0, tx_retransmits = 0;
};

struct alignas(64) SocketRow {
    uint32_t seq = 0;
    uint32_t in_use = 0;
    SocketIdentity id;
    SocketNumbers numbers;
};

// Row i is the i-th ring that the process opened.
struct RingNumbers {
    uint64_t rx_frames = 0, rx_bytes = 0, tx_frames = 0, tx_bytes = 0;
    uint64_t rx_dropped = 0, tx_refused = 0, wakeups = 0;
    uint64_t tcp_memory = 0;   // bytes that connections of this ring hold
    uint64_t tcp_refused = 0;  // writes and texts refused for want of memory
    uint64_t tcp_pressed = 0;  // times that the process came under memory pressure
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
    RingNumbers numbers;
    uint64_t drops[kDropSlots] = {};  // by DropReason
};

static_assert(sizeof(Header) <= kHeaderBytes);
static_assert(unsigned(DropReason::count) <= kDropSlots);
static_assert(std::is_trivially_copyable_v<SocketRow> && std::is_trivially_copyable_v<RingRow>);
// A difference here is a change of the layout.
static_assert(sizeof(Segment) == 24 && sizeof(SocketIdentity) == 88 && sizeof(SocketRow) == 320);
static_assert(sizeof(RingRow) == 896);

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
