#include "capture/file.h"

#include <unistd.h>

#include <bit>
#include <cstring>
#include <utility>

#include "stats/layout.h"

namespace vma::capture {
namespace {

using namespace vma::stats;

bool read_all(int fd, void* to, size_t n, uint64_t offset) {
    return pread(fd, to, n, off_t(offset)) == ssize_t(n);
}

}  // namespace

std::optional<CaptureFile> CaptureFile::open(int fd, uint32_t pid) {
    CaptureHeader header;
    CaptureFile file(fd, 0);  // closes it
    if (!read_all(fd, &header, sizeof header, 0) ||
        std::memcmp(header.magic, kCaptureMagic, sizeof kCaptureMagic) != 0 || header.pid != pid ||
        !std::has_single_bit(header.bytes) || header.bytes < kLeastCapture ||
        header.bytes > kMostCapture)
        return std::nullopt;
    file.bytes_ = header.bytes;
    return file;
}

CaptureFile::CaptureFile(CaptureFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_), tail_(other.tail_) {}

CaptureFile& CaptureFile::operator=(CaptureFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    bytes_ = other.bytes_;
    tail_ = other.tail_;
    return *this;
}

CaptureFile::~CaptureFile() {
    if (fd_ >= 0) close(fd_);
}

CaptureFile::Next CaptureFile::next(Frame& out) {
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

uint64_t CaptureFile::dropped() const {
    CaptureHeader header;
    return read_all(fd_, &header, sizeof header, 0) ? header.dropped : 0;
}

}  // namespace vma::capture
