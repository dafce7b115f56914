// DeviceClock: received frames that carry readings of a device's counter get the time that VMA_HW_TS_CONVERSION asks for.
//
//   1 raw     the counter in nanoseconds since it started
//   2 best    as 3, or as 1 when the counter cannot be read
//   3 system  CLOCK_REALTIME; readings of both clocks 100 ms, 300 ms and from then on every second after the first
//   4 PTP     the PTP clock of the interface (/dev/ptpN), every 100 ms; as 3 when there is none
//
// A reading is the closest of ten pairs. They are made when frames arrive and one is due: without traffic nobody wakes.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/own_fd.h"
#include "base/result.h"
#include "dev/ring.h"
#include "engine/clock_line.h"

namespace vma {

enum class StampConversion : uint8_t { off, raw, best, system, ptp };

// A clock that stamps follow.
class ReferenceClock {
  public:
    virtual ~ReferenceClock() = default;
    virtual bool read(int64_t* ns) = 0;
};

// The PTP clock that belongs to a network interface. ENODEV: it has none.
Result<std::unique_ptr<ReferenceClock>> open_ptp_clock(const std::string& interface);

class DeviceClock {
  public:
    // Null: the ring has no such counter, or nothing is wanted of it.
    static std::unique_ptr<DeviceClock> make(Ring& ring, StampConversion wanted,
                                             const std::string& interface);
    DeviceClock(const RingCaps& caps, std::unique_ptr<ReferenceClock> reference, bool is_ptp);

    // [lease of the ring's shard] A batch that has just been taken from `ring`.
    void convert(std::span<Packet> frames, Instant now, Ring& ring) {
        if (due_ <= now) [[unlikely]]
            (void)follow(now, ring);
        const bool known = reference_ == nullptr || readings_ != 0;
        for (Packet& frame : frames)
            if (frame->meta.hw_time_ns != 0)
                frame->meta.hw_time_ns = known ? line_.at(uint64_t(frame->meta.hw_time_ns)) : 0;
    }

  private:
    // False: a clock could not be read.
    bool follow(Instant now, Ring& ring);

    ClockLine line_;
    std::unique_ptr<ReferenceClock> reference_;  // null: the counter itself
    bool is_ptp_;
    unsigned readings_ = 0;
    Instant due_{};
};

}  // namespace vma
