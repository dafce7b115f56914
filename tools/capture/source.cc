#include "capture/source.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <bit>
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
constexpr uint32_t kLongestFrame = 1u << 17;

bool read_all(int fd, void* to, size_t n, uint64_t offset) {
    return pread(fd, to, n, off_t(offset)) == ssize_t(n);
}

}  // namespace

Source::Source(Source&& other) noexcept
    : page_(std::move(other.page_)),
      program_(std::move(other.program_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_),
      tail_(other.tail_) {}

Source::~Source() {
    if (fd_ < 0) return;
    ask(false);
    close(fd_);
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
    source.fd_ = ::open(name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (source.fd_ < 0) {
        *why = fmt::format("{}: {}", name, std::strerror(errno));
        return std::nullopt;
    }
    // Nobody else has to find it, and nothing is left of it when both ends are gone.
    unlink(name.c_str());
    CaptureHeader capture;
    if (!read_all(source.fd_, &capture, sizeof capture, 0) ||
        std::memcmp(capture.magic, kCaptureMagic, sizeof kCaptureMagic) != 0 ||
        capture.pid != pid || !std::has_single_bit(capture.bytes) ||
        capture.bytes < kLeastCapture || capture.bytes > kMostCapture) {
        *why = fmt::format("{} is not a capture file of process {}", name, pid);
        return std::nullopt;
    }
    source.bytes_ = capture.bytes;
    return source;
}

Source::Next Source::next(Frame& out) {
    CaptureHeader header;
    if (!read_all(fd_, &header, sizeof header, 0)) return Next::damaged;
    if (header.head == tail_) return Next::none;
    if (header.head - tail_ > bytes_ || header.head < tail_) return Next::damaged;
    const auto read_ring = [&](uint64_t at, void* to, size_t n) {
        const uint64_t begin = at & (bytes_ - 1), first = std::min<uint64_t>(n, bytes_ - begin);
        return read_all(fd_, to, first, kCaptureData + begin) &&
               read_all(fd_, static_cast<char*>(to) + first, n - first, kCaptureData);
    };
    CaptureRecord record;
    if (!read_ring(tail_, &record, sizeof record)) return Next::damaged;
    if (record.state != kRecordReady) return Next::none;  // still being written
    if (record.size < sizeof record || record.size > header.head - tail_ ||
        record.size > kLongestFrame + sizeof record || record.drop >= DropReason::count)
        return Next::damaged;
    out.bytes.resize(record.size - sizeof record);
    if (!read_ring(tail_ + sizeof record, out.bytes.data(), out.bytes.size())) return Next::damaged;
    out.ifindex = record.ifindex;
    out.inbound = record.direction == Direction::in;
    out.drop = record.drop;
    out.time_ns = record.realtime_ns;
    tail_ += (record.size + 7) & ~uint64_t{7};
    const CaptureControl control{tail_};
    return pwrite(fd_, &control, sizeof control, kControlOffset) == ssize_t(sizeof control)
               ? Next::frame
               : Next::damaged;
}

uint64_t Source::dropped() const {
    CaptureHeader header;
    return read_all(fd_, &header, sizeof header, 0) ? header.dropped : 0;
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
