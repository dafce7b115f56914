// Source: frames of one process out of its capture file (src/stats/capture.h). Reads with pread(2), never through a mapping,
// and checks each size before it follows it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stats/capture.h"
#include "stats/reader.h"

namespace vma::capture {

struct Frame {
    uint32_t ifindex = 0;
    bool inbound = false;
    DropReason drop = DropReason::none;
    int64_t time_ns = 0;
    std::string bytes;
};

class Source {
  public:
    // Asks process `pid` to begin and waits for its file. Empty and *why.
    static std::optional<Source> open(const std::string& directory, uint32_t pid, uint32_t bytes,
                                      std::string* why);
    Source(Source&& other) noexcept;
    Source& operator=(Source&&) = delete;
    ~Source();  // asks it to stop

    enum class Next { frame, none, damaged };
    // The oldest frame that has not been taken yet. damaged: the file is not one of ours any more.
    Next next(Frame& out);
    uint64_t dropped() const;  // frames that did not fit so far
    // Once a second, so that the process knows that somebody is there. False: it has ended or does not take the request.
    bool still_there();
    std::string interface_name(uint32_t ifindex) const;
    const std::string& program() const { return program_; }

  private:
    explicit Source(stats::PageFile page) : page_(std::move(page)) {}
    bool ask(bool on);
    stats::PageFile page_;
    std::string program_;
    int fd_ = -1;
    uint32_t bytes_ = 0;
    uint64_t tail_ = 0;
};

}  // namespace vma::capture
