// Frames of offloaded traffic for vma_capture: a file <VMA_STATS_SHMEM_DIR>/vmacap.<pid>, mode 0600, made on request
// (Verb::capture), into which the library writes each frame that a ring received or took. Off costs a batch of frames one
// load and one branch. On never waits: what does not fit is counted.
//
//   0       CaptureHeader    page 0, written by the library
//   4096    CaptureControl   page 1, written by the viewer
//   8192    a ring of `bytes` bytes (a power of two) in which records follow each other, each at a multiple of 8; a record
//           that reaches the end goes on at the start
//
// Positions only grow; the place of position p is p modulo `bytes`. A record between CaptureControl::tail and
// CaptureHeader::head is whole once its state is kRecordReady; the viewer takes them in order and moves tail. The library uses
// tail only to see how much room there is, and a tail that cannot be is a full ring. Host byte order.
//
// Threads: any; a spin lock guards the reservation of a record, not its filling.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>

#include "base/bytes.h"
#include "base/drop.h"
#include "base/time.h"

namespace vma::stats {

inline constexpr char kCaptureMagic[8] = {'V', 'M', 'A', 'C', 'A', 'P', '1', '\n'};
inline constexpr char kCapturePrefix[] = "vmacap.";
inline constexpr uint64_t kCaptureData = 8192;
inline constexpr uint32_t kLeastCapture = 1u << 16, kMostCapture = 1u << 30;  // bytes
// A viewer that has not asked again for this long is gone.
inline constexpr Duration kCaptureViewer = Duration::seconds(5);

struct CaptureHeader {
    char magic[8] = {};
    uint32_t pid = 0;
    uint32_t bytes = 0;
    uint64_t serial = 0;  // grows with each file that this process makes
    uint64_t head = 0;    // behind the last record reserved
    uint64_t dropped = 0;
};
struct CaptureControl {
    uint64_t tail = 0;
};

enum class Direction : uint8_t { in = 1, out = 2 };

inline constexpr uint32_t kRecordReady = 0x52454144;
struct CaptureRecord {
    uint32_t state = 0;  // written last
    uint32_t size = 0;   // of the record with the frame, before rounding up
    uint32_t ifindex = 0;
    Direction direction{};
    DropReason drop = DropReason::none;  // why a received frame was not delivered
    uint16_t unused = 0;
    int64_t realtime_ns = 0;
};
static_assert(sizeof(CaptureRecord) == 24);

namespace capture_detail {
extern std::atomic<bool> on;
}
// Whether frames are wanted.
inline bool capturing() { return capture_detail::on.load(std::memory_order_relaxed); }

// A record of one frame, being filled.
class CaptureSlot {
  public:
    // Room for `length` bytes; none (counted) when the ring is full.
    CaptureSlot(uint32_t ifindex, Direction direction, uint32_t length, int64_t realtime_ns);
    CaptureSlot(const CaptureSlot&) = delete;
    CaptureSlot& operator=(const CaptureSlot&) = delete;
    void add(const void* bytes, size_t n);  // in all as many as were asked for
    void finish(DropReason drop = DropReason::none);

  private:
    uint64_t record_ = 0, at_ = 0;
    bool has_room_ = false;
};

// Starts a capture of `bytes` (rounded up to a power of two and clamped) in `directory`, which ends in a slash; or lets the one
// of this `viewer` go on. 0 or an errno: EBUSY there is another's; ENOENT no directory; open(2), fallocate(2), mmap(2). Internal thread, as the next three.
int start_capture(const char* directory, uint32_t bytes, uint32_t viewer, Instant now);
void stop_capture();  // no new records; the file's name goes
void free_capture();  // after that, once no thread is filling a record any more: the memory goes
bool capture_is_over(Instant now);  // it runs and its viewer is gone
void capture_forget_in_child();

}  // namespace vma::stats
