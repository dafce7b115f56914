// Source: a process that is being captured, and its file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "capture/file.h"
#include "stats/reader.h"

namespace vma::capture {

class Source {
  public:
    // Asks process `pid` to begin and waits for its file. Empty and *why.
    static std::optional<Source> open(const std::string& directory, uint32_t pid, uint32_t bytes,
                                      std::string* why);
    Source(Source&& other) noexcept;
    Source& operator=(Source&&) = delete;
    ~Source();  // asks it to stop

    using Next = CaptureFile::Next;
    Next next(Frame& out) { return file_->next(out); }
    uint64_t dropped() const { return file_->dropped(); }
    // Once a second, so that the process knows that somebody is there. False: it has ended or does not take the request.
    bool still_there();
    std::string interface_name(uint32_t ifindex) const;
    const std::string& program() const { return program_; }

  private:
    explicit Source(stats::PageFile page) : page_(std::move(page)) {}
    bool ask(bool on);
    stats::PageFile page_;
    std::string program_;
    uint32_t bytes_ = 0;  // asked for, then those of the file
    std::optional<CaptureFile> file_;
};

}  // namespace vma::capture
