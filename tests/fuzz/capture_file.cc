// A capture file that its process, or whoever may write to it, has made to lie, also while it is read. Input: records of (what, offset of
// three bytes, count, bytes): what 0 puts the bytes there, 1 makes the file as long as the offset says, 2 lets the viewer take a frame.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "capture/file.h"
#include "capture/pcapng.h"
#include "fuzz/fuzz_check.h"

using namespace vma::capture;
using namespace vma::stats;

namespace {

constexpr uint32_t kPid = 4711;

// A good one with two frames.
std::string good_file() {
    std::string bytes(kCaptureData + kLeastCapture, 0);
    CaptureHeader header;
    std::memcpy(header.magic, kCaptureMagic, sizeof kCaptureMagic);
    header.pid = kPid;
    header.bytes = kLeastCapture;
    for (const uint32_t length : {60u, 1514u}) {
        CaptureRecord record;
        record.state = kRecordReady;
        record.size = uint32_t(sizeof record) + length;
        record.ifindex = 2;
        record.direction = Direction::in;
        std::memcpy(bytes.data() + kCaptureData + header.head, &record, sizeof record);
        header.head += (record.size + 7) & ~uint64_t{7};
    }
    std::memcpy(bytes.data(), &header, sizeof header);
    return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const std::string good = good_file();
    const int fd = memfd_create("capture", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && pwrite(fd, good.data(), good.size(), 0) == ssize_t(good.size()));
    static const int nowhere = memfd_create("pcapng", MFD_CLOEXEC);
    FUZZ_CHECK(ftruncate(nowhere, 0) == 0 && lseek(nowhere, 0, SEEK_SET) == 0);
    PcapngWriter out(nowhere);
    FUZZ_CHECK(out.begin("fuzz") && out.add_interface("eth0", ""));
    std::optional<CaptureFile> file;
    // Opened before anything is changed, or after all of it.
    const bool late = size > 0 && data[0] & 0x80;
    const auto open = [&] {
        file = CaptureFile::open(dup(fd), kPid);
        FUZZ_CHECK(!file || (file->bytes() >= kLeastCapture && file->bytes() <= kMostCapture));
    };
    const auto take = [&] {
        Frame frame;
        if (!file || file->next(frame) != CaptureFile::Next::frame) return false;
        FUZZ_CHECK(frame.bytes.size() <= CaptureFile::kLongestFrame);
        FUZZ_CHECK(frame.drop < vma::DropReason::count);
        FUZZ_CHECK(out.packet(0, frame.time_ns, frame.bytes, frame.inbound, "dropped"));
        return true;
    };
    if (!late) open();
    for (size_t at = 0; size - at >= 5;) {
        const uint32_t offset = data[at + 1] | data[at + 2] << 8 | data[at + 3] << 16;
        const size_t n = std::min<size_t>(data[at + 4], size - at - 5);
        switch (data[at] & 3) {
            case 0:
                FUZZ_CHECK(n == 0 || pwrite(fd, data + at + 5, n, offset) == ssize_t(n));
                break;
            case 1:
                FUZZ_CHECK(ftruncate(fd, offset) == 0);
                break;
            default:
                (void)take();
        }
        at += 5 + n;
    }
    if (late) open();
    // It ends: what has been taken is not there a second time.
    unsigned frames = 0;
    while (take()) FUZZ_CHECK(++frames <= kMostCapture / sizeof(CaptureRecord));
    if (file) (void)file->dropped();
    close(fd);
    return 0;
}
