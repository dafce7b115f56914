#include "stats/publisher.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "base/log.h"
#include "base/own_fd.h"
#include "base/process.h"
#include "base/spin_lock.h"
#include "base/sys.h"

namespace vma::stats {
namespace {

constexpr size_t kPage = 4096;
constexpr Duration kAnswerGap =
    Duration::millis(10);  // requests closer together than this share an answer

template <class T>
void put(T& word, T value, std::memory_order order = std::memory_order_relaxed) {
    std::atomic_ref<T>(word).store(value, order);
}

// Rows of one kind in segments, each twice as long as the one before: segment s holds first << s rows.
struct Table {
    static constexpr unsigned kSegments = 14;
    SegmentKind kind;
    uint32_t row_size;
    uint32_t first;
    uint8_t* base[kSegments] = {};
    unsigned segments = 0;

    uint32_t capacity() const { return first * ((1u << segments) - 1); }
    size_t segment_bytes(unsigned s) const {
        return ((size_t(first) << s) * row_size + kPage - 1) & ~(kPage - 1);
    }
    void* row(uint32_t i) const {
        const unsigned s = unsigned(std::bit_width(i / first + 1)) - 1;
        return base[s] + size_t(i - first * ((1u << s) - 1)) * row_size;
    }
};

struct State {
    SpinLock lock;
    char path[4096 + 32] = {};  // directory and prefix, then the whole name
    size_t directory_length = 0;
    char program[sizeof Header::program] = {};
    char library[sizeof Header::library] = {};
    bool refused = false;  // no page for this process: said once
    Header* header = nullptr;
    uint32_t pid = 0;    // whose page it is
    uint32_t epoch = 1;  // of the handles that are good
    uint32_t publishing = 0;
    OwnFd file;
    uint64_t file_size = 0;
    uint32_t segments = 0;
    Table sockets{SegmentKind::sockets, sizeof(SocketRow), 64};
    Table rings{SegmentKind::rings, sizeof(RingRow), 8};
    // Free socket rows as a list of indices, in private memory: the page is not read back.
    uint32_t* next_free[Table::kSegments] = {};
    uint32_t free_row = UINT32_MAX;
    // Requests of viewers.
    uint64_t request = 0, reload = 0;
    Instant reader_until, last_published;
};

// Never destroyed: threads may still be in calls while exit handlers run.
State& state() {
    alignas(State) static unsigned char memory[sizeof(State)];
    static State* made = new (memory) State;
    return *made;
}

uint32_t* free_link(State& s, uint32_t row) {
    const unsigned segment = unsigned(std::bit_width(row / s.sockets.first + 1)) - 1;
    return s.next_free[segment] + (row - s.sockets.first * ((1u << segment) - 1));
}

// Blocks for [offset, offset + n), so that a store into the mapping cannot meet a full disk (SIGBUS). 0 or -errno.
int reserve(int fd, uint64_t offset, uint64_t n) {
    rlimit limit{};
    if (sys::raw(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, sys::ptr(&limit)) == 0 &&
        offset + n > limit.rlim_cur)
        return -EFBIG;  // asked before: beyond it the kernel would send SIGXFSZ
    const long error = sys::raw(SYS_fallocate, fd, 0, long(offset), long(n));
    if (error != -EOPNOTSUPP) return int(error);
    static constexpr char zeros[kPage] = {};
    for (uint64_t at = offset; at < offset + n; at += sizeof zeros) {
        const long written = sys::raw(SYS_pwrite64, fd, sys::ptr(zeros), sizeof zeros, long(at));
        if (written != long(sizeof zeros)) return written < 0 ? int(written) : -ENOSPC;
    }
    return 0;
}

// Maps n more bytes at the end of the file. Null and *error.
void* append(State& s, size_t n, int* error) {
    *error = reserve(s.file.fd(), s.file_size, n);
    if (*error) return nullptr;
    void* memory =
        sys::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, s.file.fd(), off_t(s.file_size));
    if (sys::failed(memory)) {
        *error = int(reinterpret_cast<intptr_t>(memory));
        return nullptr;
    }
    s.file_size += n;
    return memory;
}

bool grow(State& s, Table& table) {
    const uint32_t count = s.segments;
    if (table.segments == Table::kSegments || count == kMaxSegments) return false;
    const unsigned segment = table.segments;
    const uint32_t rows = table.first << segment;
    if (table.kind == SegmentKind::sockets) {
        void* links = sys::mmap(nullptr, rows * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sys::failed(links)) return false;
        s.next_free[segment] = static_cast<uint32_t*>(links);
    }
    const uint64_t offset = s.file_size;
    int error = 0;
    void* memory = append(s, table.segment_bytes(segment), &error);
    if (memory == nullptr) {
        if (table.kind == SegmentKind::sockets)
            sys::munmap(s.next_free[segment], rows * sizeof(uint32_t));
        return false;
    }
    table.base[segment] = static_cast<uint8_t*>(memory);
    const uint32_t from = table.capacity();
    table.segments++;
    if (table.kind == SegmentKind::sockets) {
        for (uint32_t i = rows; i-- > 0;) {
            *free_link(s, from + i) = s.free_row;
            s.free_row = from + i;
        }
    }
    s.header->segments[count] = {table.kind, table.row_size, offset, rows};
    s.segments = count + 1;
    put(s.header->segment_count, s.segments, std::memory_order_release);
    return true;
}

void unmap(State& s) {
    if (s.header == nullptr) return;
    for (Table* table : {&s.sockets, &s.rings}) {
        for (unsigned i = 0; i < table->segments; i++)
            sys::munmap(table->base[i], table->segment_bytes(i));
        if (table->kind == SegmentKind::sockets)
            for (unsigned i = 0; i < table->segments; i++)
                sys::munmap(s.next_free[i], (size_t(table->first) << i) * sizeof(uint32_t));
        table->segments = 0;
    }
    sys::munmap(s.header, kFirstSegment);
    s.header = nullptr;
    s.file.reset();
    s.file_size = 0;
    s.segments = 0;
    s.free_row = UINT32_MAX;
    s.request = s.reload = 0;
    s.reader_until = s.last_published = {};
    s.epoch++;
}

// The name is taken: by a process of this number that is gone, or, in a directory shared by containers, by one that lives
// in another pid namespace.
bool belongs_elsewhere(const char* path) {
    const int fd = int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr(path),
                                O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (fd < 0) return false;
    Header header;
    const long n = sys::raw(SYS_pread64, fd, sys::ptr(&header), sizeof header, 0);
    sys::close(fd);
    return n == long(sizeof header) && std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 &&
           header.pid_namespace != 0 && header.pid_namespace != pid_namespace();
}

// A new file of ours under s.path, or -errno. Mode 0600 until it is fully made.
int create_file(State& s) {
    for (int attempt = 0;; attempt++) {
        const int fd = int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr(s.path),
                                    O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (fd != -EEXIST || attempt == 1 || belongs_elsewhere(s.path)) return fd;
        // Refused in a sticky directory when it is another user's.
        if (const int error = int(sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(s.path), 0)))
            return error;
    }
}

void write_header(State& s) {
    Header& h = *s.header;
    std::memcpy(h.magic, kMagic, sizeof kMagic);
    h.version = kVersion;
    h.header_size = sizeof(Header);
    h.pid = s.pid;
    h.pid_namespace = pid_namespace();
    h.start_ticks = process_start_ticks(s.pid);
    std::memcpy(h.program, s.program, sizeof h.program);
    std::memcpy(h.library, s.library, sizeof h.library);
    h.reasons = unsigned(Reason::count);
    h.drop_reasons = unsigned(DropReason::count);
    h.publishing = s.publishing;
}

int make_page(State& s) {
    s.pid = uint32_t(sys::getpid());
    char digits[12];
    auto* end = fmt::format_to(digits, "{}", s.pid);
    *end = 0;
    std::memcpy(s.path + s.directory_length, kFilePrefix, sizeof kFilePrefix - 1);
    std::strcpy(s.path + s.directory_length + sizeof kFilePrefix - 1, digits);
    const int fd = create_file(s);
    if (fd < 0) return fd;
    int error = 0;
    if (const Status kept = s.file.adopt(fd); !kept) error = -kept.error();
    void* memory = error ? nullptr : append(s, kFirstSegment, &error);
    if (memory) {
        s.header = static_cast<Header*>(memory);
        write_header(s);
        if (!grow(s, s.sockets) || !grow(s, s.rings)) error = -ENOSPC;
        put(s.header->state, PageState::ready, std::memory_order_release);
        // umask must not decide who may look.
        if (!error) error = int(sys::raw(SYS_fchmod, s.file.fd(), 0640));
    }
    if (error) {
        sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(s.path), 0);
        unmap(s);
        s.file.reset();
        s.file_size = 0;
    }
    return error;
}

// The page, made if need be. Lock held. False: none; *error is set when this call found out why.
bool have_page(State& s, int* error) {
    if (s.header) return true;
    if (s.refused || s.directory_length == 0) return false;
    *error = make_page(s);
    s.refused = *error != 0;
    return *error == 0;
}

// Forks that no hook has seen: the page is the parent's, and its lock may be held by a thread that is not here.
State& settled() {
    State& s = state();
    if (s.header && s.pid != uint32_t(self_identity() >> 32)) [[unlikely]]
        forget_in_child();
    return s;
}

// A seqlock write: fn(row) between two steps of seq.
template <class Row, class Fn>
void write_row(Row& row, Fn&& fn) {
    const uint32_t seq = row.seq | 1;
    put(row.seq, seq);
    std::atomic_thread_fence(std::memory_order_release);
    fn(row);
    put(row.seq, seq + 1, std::memory_order_release);
}

SocketRow& socket_row(State& s, uint32_t row) {
    return *static_cast<SocketRow*>(s.sockets.row(row));
}

void complete(SocketIdentity& id) {
    if (id.inode == 0) {
        struct stat st;
        if (sys::raw(SYS_fstat, id.fd, sys::ptr(&st)) == 0) id.inode = st.st_ino;
    }
    if (id.cookie == 0) {
        socklen_t len = sizeof id.cookie;
        sys::getsockopt(id.fd, SOL_SOCKET, SO_COOKIE, &id.cookie, &len);
    }
}

void copy_text(char* out, size_t room, std::string_view text) {
    const size_t n = std::min(text.size(), room - 1);
    std::memcpy(out, text.data(), n);
    std::memset(out + n, 0, room - n);
}

Control& control_of(State& s) {
    return *reinterpret_cast<Control*>(reinterpret_cast<char*>(s.header) + kControlOffset);
}
uint64_t asked_in(uint64_t& word) {
    return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire);
}

}  // namespace

void configure(std::string_view directory, std::string_view program, std::string_view library) {
    State& s = state();
    SpinGuard guard(s.lock);
    if (s.header) return;
    s.directory_length = 0;
    s.refused = false;
    copy_text(s.program, sizeof s.program, program);
    copy_text(s.library, sizeof s.library, library);
    if (directory.empty() || directory.size() > 4094) return;
    std::memcpy(s.path, directory.data(), directory.size());
    s.directory_length = directory.size();
    if (s.path[s.directory_length - 1] != '/') s.path[s.directory_length++] = '/';
}

void set_socket(RowHandle& handle, const SocketIdentity& identity) {
    State& s = settled();
    int error = 0;
    {
        SpinGuard guard(s.lock);
        if (!have_page(s, &error)) {
            if (error == 0) return;
        } else {
            SocketIdentity id = identity;
            const bool is_new = handle.row == UINT32_MAX || handle.epoch != s.epoch;
            if (is_new) {
                if (s.free_row == UINT32_MAX && !grow(s, s.sockets)) return;
                handle = {s.free_row, s.epoch};
                s.free_row = *free_link(s, handle.row);
                complete(id);
            }
            write_row(socket_row(s, handle.row), [&](SocketRow& row) {
                if (is_new) {
                    row.numbers = {};
                    row.in_use = 1;
                } else {
                    id.inode = row.id.inode;
                    id.cookie = row.id.cookie;
                }
                row.id = id;
            });
        }
    }
    if (error)
        vma_log(
            warning, "stats",
            "VMA_STATS_SHMEM_DIR: cannot make {} (errno {}): vma_stats will not see this process",
            s.path, -error);
}

void set_numbers(RowHandle handle, const SocketNumbers& numbers) {
    State& s = settled();
    SpinGuard guard(s.lock);
    if (s.header == nullptr || handle.row == UINT32_MAX || handle.epoch != s.epoch) return;
    write_row(socket_row(s, handle.row), [&](SocketRow& row) { row.numbers = numbers; });
}

void remove_socket(RowHandle& handle) {
    State& s = settled();
    SpinGuard guard(s.lock);
    if (s.header && handle.row != UINT32_MAX && handle.epoch == s.epoch) {
        write_row(socket_row(s, handle.row), [](SocketRow& row) {
            row.in_use = 0;
            row.id = {};
            row.numbers = {};
        });
        *free_link(s, handle.row) = s.free_row;
        s.free_row = handle.row;
    }
    handle = {};
}

bool set_ring(unsigned index, const RingIdentity& id, const RingNumbers& numbers,
              const DropCounters& drops) {
    State& s = settled();
    SpinGuard guard(s.lock);
    if (s.header == nullptr) return false;
    while (index >= s.rings.capacity())
        if (!grow(s, s.rings)) return false;
    write_row(*static_cast<RingRow*>(s.rings.row(index)), [&](RingRow& row) {
        row.in_use = 1;
        row.id = id;
        row.numbers = numbers;
        std::memcpy(row.drops, drops.n, sizeof drops.n);
    });
    return true;
}

void will_publish() {
    State& s = settled();
    SpinGuard guard(s.lock);
    s.publishing = 1;
    if (s.header) put(s.header->publishing, 1u);
}

bool due(Instant now) {
    State& s = settled();
    SpinGuard guard(s.lock);
    if (s.header == nullptr) return false;
    const uint64_t request = asked_in(control_of(s).request);
    if (request != s.request) {
        if (s.last_published.ns != 0 && now - s.last_published < kAnswerGap) return false;
        s.request = request;
        s.reader_until = now + kReaderActive;
        return true;
    }
    return now < s.reader_until && now - s.last_published >= kPublishEvery;
}

void published(Instant now) {
    State& s = settled();
    SpinGuard guard(s.lock);
    if (s.header == nullptr) return;
    s.last_published = now;
    put(s.header->published_ns, uint64_t(now.ns));
    put(s.header->answered, s.request, std::memory_order_release);
}

uint64_t reload_asked() {
    State& s = settled();
    SpinGuard guard(s.lock);
    if (s.header == nullptr) return 0;
    const uint64_t asked = asked_in(control_of(s).reload);
    return asked == s.reload ? 0 : asked;
}

void set_rules(uint64_t asked, const RulesState& rules) {
    State& s = settled();
    SpinGuard guard(s.lock);
    if (s.header == nullptr) return;
    put(s.header->rules_generation, rules.generation);
    put(s.header->rules_count, rules.count);
    put(s.header->rules_ok, uint32_t(rules.ok));
    copy_text(s.header->rules_text, sizeof s.header->rules_text, rules.text);
    if (asked == 0) return;
    s.reload = asked;
    put(s.header->rules_answered, asked, std::memory_order_release);
}

void withdraw(bool for_good) {
    State& s = settled();
    SpinGuard guard(s.lock);
    if (s.header) {
        struct stat mine, named;
        put(s.header->state, PageState::ended, std::memory_order_release);
        if (sys::raw(SYS_fstat, s.file.fd(), sys::ptr(&mine)) == 0 &&
            sys::raw(SYS_newfstatat, AT_FDCWD, sys::ptr(s.path), sys::ptr(&named),
                     AT_SYMLINK_NOFOLLOW) == 0 &&
            mine.st_ino == named.st_ino && mine.st_dev == named.st_dev)
            sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(s.path), 0);
        unmap(s);
    }
    if (for_good) s.refused = true;
}

void forget_in_child() {
    State& s = state();
    new (&s.lock) SpinLock;
    unmap(s);
    s.refused = false;
    s.publishing = 0;
}

std::string_view page_path() {
    State& s = state();
    SpinGuard guard(s.lock);
    return s.header ? s.path : std::string_view{};
}

}  // namespace vma::stats
