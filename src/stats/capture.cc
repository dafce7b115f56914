#include "stats/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "base/spin_lock.h"
#include "base/sys.h"
#include "stats/page_file.h"

namespace vma::stats {

namespace capture_detail {
std::atomic<bool> on{false};
}

namespace {

struct State {
    SpinLock lock;
    CaptureHeader* header = nullptr;  // null: not mapped
    uint32_t bytes = 0;
    uint64_t head = 0;  // our own: the page is not read back
    uint64_t dropped = 0, serial = 0;
    char path[4096 + 32] = {};
    uint32_t viewer = 0;
    Instant viewer_until;
};
State g_state;

uint8_t* data() { return reinterpret_cast<uint8_t*>(g_state.header) + kCaptureData; }

template <class T>
void put(T& word, T value, std::memory_order order) {
    std::atomic_ref<T>(word).store(value, order);
}

// Copies into the ring at position `at`.
void write_at(uint64_t at, const void* from, size_t n) {
    const uint32_t size = g_state.bytes, begin = uint32_t(at & (size - 1));
    const size_t first = std::min<size_t>(n, size - begin);
    std::memcpy(data() + begin, from, first);
    std::memcpy(data(), static_cast<const uint8_t*>(from) + first, n - first);
}

constexpr uint64_t rounded(uint64_t n) { return (n + 7) & ~uint64_t{7}; }

// Lock held. 0 or an errno.
int make_file(uint32_t bytes) {
    State& s = g_state;
    sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(s.path), 0);
    const int fd = create_page_file(s.path);
    if (fd < 0) return -fd;
    const uint64_t size = kCaptureData + bytes;
    int error = -reserve_blocks(fd, 0, size);
    void* memory = nullptr;
    if (error == 0) {
        memory = sys::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (sys::failed(memory)) error = int(-reinterpret_cast<intptr_t>(memory));
    }
    sys::close(fd);
    if (error) {
        sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(s.path), 0);
        return error;
    }
    s.header = static_cast<CaptureHeader*>(memory);
    s.bytes = bytes;
    s.head = s.dropped = 0;
    s.header->pid = uint32_t(sys::getpid());
    s.header->bytes = bytes;
    s.header->serial = ++s.serial;
    std::memcpy(s.header->magic, kCaptureMagic, sizeof kCaptureMagic);
    return 0;
}

}  // namespace

CaptureSlot::CaptureSlot(uint32_t ifindex, Direction direction, uint32_t length,
                         int64_t realtime_ns) {
    State& s = g_state;
    SpinGuard guard(s.lock);
    if (!capturing()) return;
    const uint64_t size = sizeof(CaptureRecord) + length, room = rounded(size);
    auto& control = *reinterpret_cast<CaptureControl*>(reinterpret_cast<uint8_t*>(s.header) + 4096);
    const uint64_t tail = std::atomic_ref(control.tail).load(std::memory_order_acquire);
    const uint64_t used = s.head - tail;
    if (tail > s.head || used > s.bytes || room > s.bytes - used) {
        put(s.header->dropped, ++s.dropped, std::memory_order_relaxed);
        return;
    }
    CaptureRecord record;
    record.size = uint32_t(size);
    record.ifindex = ifindex;
    record.direction = direction;
    record.realtime_ns = realtime_ns;
    write_at(s.head, &record, sizeof record);
    record_ = s.head;
    at_ = s.head + sizeof record;
    has_room_ = true;
    s.head += room;
    put(s.header->head, s.head, std::memory_order_release);
}

void CaptureSlot::add(const void* bytes, size_t n) {
    if (!has_room_) return;
    write_at(at_, bytes, n);
    at_ += n;
}

void CaptureSlot::finish(DropReason drop) {
    if (!has_room_) return;
    // Records begin at multiples of 8 in a ring whose size is one: neither word is split.
    const uint32_t begin = uint32_t(record_ & (g_state.bytes - 1));
    write_at(record_ + offsetof(CaptureRecord, drop), &drop, sizeof drop);
    auto* state = reinterpret_cast<uint32_t*>(data() + begin);
    put(*state, kRecordReady, std::memory_order_release);
}

int start_capture(const char* directory, uint32_t bytes, uint32_t viewer, Instant now) {
    State& s = g_state;
    SpinGuard guard(s.lock);
    if (capturing() && viewer != s.viewer) return EBUSY;
    s.viewer_until = now + kCaptureViewer;
    if (capturing()) return 0;
    s.viewer = viewer;
    const size_t length = std::strlen(directory);
    if (length == 0 || length > 4096) return ENOENT;
    std::memcpy(s.path, directory, length);
    *page_file_name(s.path + length, kCapturePrefix, uint32_t(sys::getpid())) = 0;
    const int error = make_file(std::bit_ceil(std::clamp(bytes, kLeastCapture, kMostCapture)));
    if (error == 0) capture_detail::on.store(true, std::memory_order_release);
    return error;
}

void stop_capture() {
    State& s = g_state;
    SpinGuard guard(s.lock);
    if (!capturing()) return;
    capture_detail::on.store(false, std::memory_order_relaxed);
    sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(s.path), 0);
}

void free_capture() {
    State& s = g_state;
    SpinGuard guard(s.lock);
    if (s.header == nullptr) return;
    sys::munmap(s.header, kCaptureData + s.bytes);
    s.header = nullptr;
}

bool capture_is_over(Instant now) { return capturing() && now > g_state.viewer_until; }

void capture_forget_in_child() {
    State& s = g_state;
    new (&s.lock) SpinLock;
    capture_detail::on.store(false, std::memory_order_relaxed);
    s.header = nullptr;  // the parent's memory: never written to from here
}

}  // namespace vma::stats
