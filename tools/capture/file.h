// The capture file of a process (src/stats/capture.h), as its viewer reads it. Whoever may write to it may put anything there at any
// moment: it is read by pread(2), never through a mapping, each size once and checked before it is followed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stats/capture.h"

namespace vma::capture {

struct Frame {
    uint32_t ifindex = 0;
    bool inbound = false;
    DropReason drop = DropReason::none;
    int64_t time_ns = 0;
    std::string bytes;
};

class CaptureFile {
  public:
    static constexpr uint32_t kLongestFrame = 1u << 17;

    // Takes the descriptor. Nothing: it is not a capture file of process `pid`.
    static std::optional<CaptureFile> open(int fd, uint32_t pid);
    CaptureFile(CaptureFile&& other) noexcept;
    CaptureFile& operator=(CaptureFile&& other) noexcept;
    ~CaptureFile();

    enum class Next { frame, none, damaged };
    // The oldest frame that has not been taken yet. damaged: the file is not one of ours any more.
    Next next(Frame& out);
    uint64_t dropped() const;  // frames that did not fit so far
    uint32_t bytes() const { return bytes_; }

  private:
    CaptureFile(int fd, uint32_t bytes) : fd_(fd), bytes_(bytes) {}
    int fd_;
    uint32_t bytes_;  // of the ring
    uint64_t tail_ = 0;
};

}  // namespace vma::capture
