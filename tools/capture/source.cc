#include "capture/source.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace vma::capture {
namespace {

using namespace vma::stats;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAnswerWithin{3000};
constexpr milliseconds kLookEvery{2};

}  // namespace

Source::Source(Source&& other) noexcept
    : page_(std::move(other.page_)),
      program_(std::move(other.program_)),
      bytes_(other.bytes_),
      file_(std::exchange(other.file_, std::nullopt)) {}

Source::~Source() {
    if (file_) ask(false);
}

bool Source::ask(bool on) {
    Control wish;
    wish.capture_on = on ? uint32_t(getpid()) : 0;
    wish.capture_bytes = bytes_;
    return page_.ask(Verb::capture, wish) == 0;
}

bool Source::still_there() { return page_.process_lives() && ask(true); }

std::optional<Source> Source::open(const std::string& directory, uint32_t pid, uint32_t bytes,
                                   std::string* why) {
    auto page = PageFile::open(directory, pid, why);
    if (!page) return std::nullopt;
    Snapshot snapshot;
    if (!page->read(snapshot, why)) return std::nullopt;
    if (snapshot.header.publishing == 0) {
        *why = fmt::format("process {} has no offloaded socket yet: nothing to capture", pid);
        return std::nullopt;
    }
    Source source(std::move(*page));
    source.program_ = snapshot.program;
    source.bytes_ = bytes;
    if (!source.ask(true)) {
        *why = fmt::format("no write access to the page of process {}: not its owner", pid);
        return std::nullopt;
    }
    source.page_.ask(Verb::counters);  // brings the names of the rings up to date
    const auto end = steady_clock::now() + kAnswerWithin;
    while (!source.page_.answered(Verb::capture) || !source.page_.answered(Verb::counters)) {
        if (steady_clock::now() >= end) {
            *why = fmt::format("process {} does not answer (stopped?)", pid);
            return std::nullopt;
        }
        std::this_thread::sleep_for(kLookEvery);
    }
    Header header;
    if (!source.page_.header(header) || header.capture_error != 0) {
        *why = header.capture_error == EBUSY
                   ? fmt::format("process {} is being captured by another vma_capture", pid)
                   : fmt::format("process {} cannot make its capture file: {}", pid,
                                 std::strerror(header.capture_error));
        return std::nullopt;
    }
    const std::string name = fmt::format("{}{}{}{}", directory, directory.ends_with('/') ? "" : "/",
                                         kCapturePrefix, pid);
    const int fd = ::open(name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        *why = fmt::format("{}: {}", name, std::strerror(errno));
        return std::nullopt;
    }
    // Nobody else has to find it, and nothing is left of it when both ends are gone.
    unlink(name.c_str());
    source.file_ = CaptureFile::open(fd, pid);
    if (!source.file_) {
        *why = fmt::format("{} is not a capture file of process {}", name, pid);
        return std::nullopt;
    }
    source.bytes_ = source.file_->bytes();
    return source;
}

std::string Source::interface_name(uint32_t ifindex) const {
    Snapshot snapshot;
    std::string why;
    if (page_.read(snapshot, &why))
        for (const RingRow& ring : snapshot.rings)
            if (ring.in_use && ring.id.ifindex == ifindex && ring.id.interface[0])
                return printable(ring.id.interface, sizeof ring.id.interface);
    return fmt::format("if{}", ifindex);
}

}  // namespace vma::capture
