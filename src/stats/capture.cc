#include "stats/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "base/own_fd.h"
#include "base/spin_lock.h"
#include "base/sys.h"
#include "stats/frame_watch.h"
#include "stats/layout.h"
#include "stats/page_file.h"

namespace vma::stats {

namespace capture_detail {
std::atomic<bool> on{false};
}

namespace {

struct State {
    SpinLock lock;
    // The file as the library has it, in memory that nobody can cut, and its mapping, which only the kernel writes to.
    uint8_t* memory = nullptr;  // null: there is no capture
    uint8_t* shown = nullptr;
    OwnFd memory_file, file;
    uint32_t bytes = 0;
    uint64_t head = 0;        // behind the last record reserved
    uint64_t shown_head = 0;  // behind the last that viewers may see
    uint64_t tail = 0;        // as it was last read
    uint64_t dropped = 0, serial = 0;
    char path[4096 + 32] = {};
    uint32_t viewer = 0;
    Instant viewer_until;
    std::atomic<bool> cut{false};
    bool wanted = false;  // by the viewer
    bool logged = false;  // watch_frames()
};
// Never destroyed: threads may still be in calls while exit handlers run.
union ForEver {
    State state{};
    ~ForEver() {}
};
constinit ForEver g_forever;

State& state() { return g_forever.state; }
CaptureHeader& header() { return *reinterpret_cast<CaptureHeader*>(state().memory); }
uint64_t file_bytes() { return kCaptureData + state().bytes; }

void want(bool wanted) {
    State& s = state();
    s.wanted = wanted;
    capture_detail::on.store(wanted || s.logged, std::memory_order_release);
}

void lose() {
    state().cut.store(true, std::memory_order_relaxed);
    want(false);
}

// Lets viewers see these bytes.
void show(uint64_t from, size_t n) {
    const iovec to{state().shown + from, n};
    if (n != 0 && copy_in_order(state().memory_file.fd(), from, {&to, 1}) != n) lose();
}

uint64_t place(uint64_t position) { return kCaptureData + (position & (state().bytes - 1)); }

// Copies into the ring at position `at`.
void write_at(uint64_t at, const void* from, size_t n) {
    const size_t first = std::min<size_t>(n, file_bytes() - place(at));
    std::memcpy(state().memory + place(at), from, first);
    std::memcpy(state().memory + kCaptureData, static_cast<const uint8_t*>(from) + first,
                n - first);
}

void read_at(uint64_t at, void* to, size_t n) {
    const size_t first = std::min<size_t>(n, file_bytes() - place(at));
    std::memcpy(to, state().memory + place(at), first);
    std::memcpy(static_cast<uint8_t*>(to) + first, state().memory + kCaptureData, n - first);
}

uint32_t& state_of(uint64_t record) {
    // Records begin at multiples of 8 in a ring whose size is one: the word is not split.
    return *reinterpret_cast<uint32_t*>(state().memory + place(record));
}

constexpr uint64_t rounded(uint64_t n) { return (n + 7) & ~uint64_t{7}; }

// Lets viewers see the records that are whole, in their order: those behind one that is still being filled wait for it. Lock
// held.
void show_whole_records() {
    State& s = state();
    const uint64_t from = s.shown_head;
    while (s.shown_head != s.head) {
        const std::atomic_ref<uint32_t> ready(state_of(s.shown_head));
        if (ready.load(std::memory_order_acquire) != kRecordReady) break;
        uint32_t size;
        read_at(s.shown_head + offsetof(CaptureRecord, size), &size, sizeof size);
        s.shown_head += rounded(size);
    }
    if (s.shown_head == from) return;
    const uint64_t n = s.shown_head - from, first = std::min(n, file_bytes() - place(from));
    show(place(from), first);
    show(kCaptureData, n - first);
    header().head = s.shown_head;
    show(offsetof(CaptureHeader, head), sizeof s.shown_head);
}

// Whether the viewer has left so much room, as far as we have heard or hear now.
bool has_room(uint64_t room) {
    State& s = state();
    const auto fits = [&] {
        return s.tail <= s.head && s.head - s.tail <= s.bytes &&
               room <= s.bytes - (s.head - s.tail);
    };
    if (fits()) return true;
    if (sys::raw(SYS_pread64, s.file.fd(), sys::ptr(&s.tail), sizeof s.tail,
                 long(kControlOffset)) != long(sizeof s.tail))
        lose();
    return fits();
}

// Memory of its own and the file. 0 or -errno.
int make(uint32_t bytes) {
    State& s = state();
    s.bytes = bytes;
    int error = sealed_memory("vma-capture", s.memory_file);
    if (error == 0) error = reserve_blocks(s.memory_file.fd(), 0, file_bytes());
    if (error == 0) error = map_shared(s.memory_file.fd(), 0, file_bytes(), &s.memory);
    if (error) return error;
    sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(s.path), 0);
    const int fd = create_page_file(s.path);
    if (fd < 0) return fd;
    if (const Status kept = s.file.adopt(fd); !kept) return -kept.error();
    error = reserve_blocks(s.file.fd(), 0, file_bytes());
    if (error == 0) error = map_shared(s.file.fd(), 0, file_bytes(), &s.shown);
    if (error) return error;
    s.head = s.shown_head = s.tail = s.dropped = 0;
    header().pid = uint32_t(sys::getpid());
    header().bytes = bytes;
    header().serial = ++s.serial;
    std::memcpy(header().magic, kCaptureMagic, sizeof kCaptureMagic);
    show(0, sizeof(CaptureHeader));
    return s.cut.load(std::memory_order_relaxed) ? -EFAULT : 0;
}

void free_all() {
    State& s = state();
    if (s.memory) sys::munmap(std::exchange(s.memory, nullptr), file_bytes());
    if (s.shown) sys::munmap(std::exchange(s.shown, nullptr), file_bytes());
    s.memory_file.reset();
    s.file.reset();
    s.cut.store(false, std::memory_order_relaxed);
}

void remove_name() { sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(state().path), 0); }

}  // namespace

CaptureSlot::CaptureSlot(uint32_t ifindex, Direction direction, uint32_t length,
                         int64_t realtime_ns) {
    State& s = state();
    SpinGuard guard(s.lock);
    if (!s.wanted) return;
    const uint64_t size = sizeof(CaptureRecord) + length, room = rounded(size);
    if (!has_room(room)) {
        header().dropped = ++s.dropped;
        show(offsetof(CaptureHeader, dropped), sizeof s.dropped);
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
}

void CaptureSlot::add(const void* bytes, size_t n) {
    if (!has_room_) return;
    write_at(at_, bytes, n);
    at_ += n;
}

void CaptureSlot::finish(DropReason drop) {
    if (!has_room_) return;
    write_at(record_ + offsetof(CaptureRecord, drop), &drop, sizeof drop);
    std::atomic_ref<uint32_t>(state_of(record_)).store(kRecordReady, std::memory_order_release);
    SpinGuard guard(state().lock);
    show_whole_records();
}

int start_capture(const char* directory, uint32_t bytes, uint32_t viewer, Instant now) {
    State& s = state();
    SpinGuard guard(s.lock);
    if (s.memory && (!s.wanted || viewer != s.viewer)) return EBUSY;
    s.viewer_until = now + kCaptureViewer;
    if (s.memory) return 0;
    s.viewer = viewer;
    const size_t length = std::strlen(directory);
    if (length == 0 || length > 4096) return ENOENT;
    std::memcpy(s.path, directory, length);
    *page_file_name(s.path + length, kCapturePrefix, uint32_t(sys::getpid())) = 0;
    const int error = make(std::bit_ceil(std::clamp(bytes, kLeastCapture, kMostCapture)));
    if (error) {
        remove_name();
        free_all();
        return -error;
    }
    want(true);
    return 0;
}

void stop_capture() {
    State& s = state();
    SpinGuard guard(s.lock);
    if (s.memory == nullptr) return;
    want(false);
    remove_name();
}

void free_capture() {
    SpinGuard guard(state().lock);
    free_all();
}

bool capture_is_over(Instant now) {
    State& s = state();
    SpinGuard guard(s.lock);
    return s.cut.load(std::memory_order_relaxed) || (s.wanted && now > s.viewer_until);
}

void watch_frames(bool watch) {
    State& s = state();
    SpinGuard guard(s.lock);
    s.logged = watch;
    want(s.wanted);
}

void capture_forget_in_child() {
    State& s = state();
    new (&s.lock) SpinLock;
    want(false);
    free_all();
}

}  // namespace vma::stats
