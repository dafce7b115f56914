#include "engine/device_clock.h"

#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "base/sys.h"

namespace vma {
namespace {

constexpr unsigned kPairs = 10;

class SystemClock final : public ReferenceClock {
  public:
    bool read(int64_t* ns) override {
        *ns = realtime_ns();
        return true;
    }
};

class PtpClock final : public ReferenceClock {
  public:
    Status open(int number) {
        const std::string path = "/dev/ptp" + std::to_string(number);
        const long fd =
            sys::raw(SYS_openat, AT_FDCWD, sys::ptr(path.c_str()), O_RDONLY | O_CLOEXEC, 0);
        return fd < 0 ? Status(Errno{int(-fd)}) : fd_.adopt(int(fd));
    }
    bool read(int64_t* ns) override {
        timespec now;
        const auto id =
            clockid_t(~unsigned(fd_.fd()) << 3 | 3);  // clock_gettime(2), dynamic clocks
        if (clock_gettime(id, &now) != 0) return false;
        *ns = int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
        return true;
    }

  private:
    OwnFd fd_;
};

// The closest of several pairs: the reference just before and behind the counter.
bool read_both(Ring& ring, ReferenceClock& reference, ClockLine::Reading* out) {
    int64_t closest = INT64_MAX;
    for (unsigned i = 0; i < kPairs; i++) {
        int64_t before, behind;
        uint64_t ticks;
        if (!reference.read(&before) || !ring.read_counter(&ticks) || !reference.read(&behind))
            return false;
        if (behind < before || behind - before >= closest) continue;
        closest = behind - before;
        *out = {ticks, before + closest / 2};
    }
    return closest != INT64_MAX;
}

std::unique_ptr<ReferenceClock> ptp_or_null(const std::string& interface) {
    auto clock = open_ptp_clock(interface);
    if (clock) return std::move(*clock);
    if (clock.error() == ENODEV)
        vma_log(warning, "engine",
                "VMA_HW_TS_CONVERSION=4: {} has no PTP clock (ethtool -T tells); its stamps follow "
                "the system's time",
                interface);
    else
        vma_log(warning, "engine",
                "VMA_HW_TS_CONVERSION=4: the PTP clock of {} cannot be opened (errno {}), it needs "
                "a readable /dev/ptpN; its stamps follow the system's time",
                interface, clock.error());
    return nullptr;
}

}  // namespace

Result<std::unique_ptr<ReferenceClock>> open_ptp_clock(const std::string& interface) {
    const int fd = sys::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return Errno{-fd};
    ethtool_ts_info info{};
    info.cmd = ETHTOOL_GET_TS_INFO;
    ifreq request{};
    interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
    request.ifr_data = reinterpret_cast<char*>(&info);
    const int asked = sys::ioctl(fd, SIOCETHTOOL, &request);
    sys::close(fd);
    if (asked < 0 && asked != -EOPNOTSUPP) return Errno{-asked};
    if (asked < 0 || info.phc_index < 0) return Errno{ENODEV};
    auto clock = std::make_unique<PtpClock>();
    if (const Status opened = clock->open(info.phc_index); !opened) return Errno{opened.error()};
    return std::unique_ptr<ReferenceClock>(std::move(clock));
}

std::unique_ptr<DeviceClock> DeviceClock::make(Ring& ring, StampConversion wanted,
                                               const std::string& interface) {
    const RingCaps& caps = ring.caps();
    if (caps.counter_hz == 0 || wanted == StampConversion::off) return nullptr;
    if (wanted == StampConversion::raw) return std::make_unique<DeviceClock>(caps, nullptr, false);
    auto reference = wanted == StampConversion::ptp ? ptp_or_null(interface) : nullptr;
    const bool is_ptp = reference != nullptr;
    if (!is_ptp) reference = std::make_unique<SystemClock>();
    auto clock = std::make_unique<DeviceClock>(caps, std::move(reference), is_ptp);
    if (clock->follow(monotonic_now(), ring)) return clock;
    if (wanted == StampConversion::best) return std::make_unique<DeviceClock>(caps, nullptr, false);
    vma_log(warning, "engine",
            "VMA_HW_TS_CONVERSION: the device of {} does not tell its clock's time: no hardware "
            "stamps until it does (1 and 2 give them raw)",
            interface);
    return clock;
}

DeviceClock::DeviceClock(const RingCaps& caps, std::unique_ptr<ReferenceClock> reference,
                         bool is_ptp)
    : line_(caps.counter_hz, caps.counter_mask),
      reference_(std::move(reference)),
      is_ptp_(is_ptp),
      due_(reference_ ? Instant{} : Instant::never()) {}

bool DeviceClock::follow(Instant now, Ring& ring) {
    const Duration until_next = is_ptp_ || readings_ == 0 ? Duration::millis(100)
                                : readings_ == 1          ? Duration::millis(200)
                                                          : Duration::seconds(1);
    due_ = now + until_next;
    ClockLine::Reading reading;
    // What cannot be read this time is asked again; the line runs on.
    if (!read_both(ring, *reference_, &reading)) return false;
    line_.take(reading, until_next);
    readings_++;
    return true;
}

}  // namespace vma
