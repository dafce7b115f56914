#include "stats/publisher.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/own_fd.h"
#include "base/process.h"
#include "base/spin_lock.h"
#include "base/sys.h"
#include "stats/page_file.h"

namespace vma::stats {
namespace {

constexpr size_t kPage = 4096;
constexpr Duration kAnswerGap =
    Duration::millis(10);  // requests closer together than this share an answer

constexpr uint32_t kMostListed = 65536;  // rows of a listing

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
    bool recycles;  // rows are given back one by one
    uint8_t* base[kSegments] = {};
    unsigned segments = 0;
    // Free rows as a list of indices, in private memory: the page is not read back.
    uint32_t* next_free[kSegments] = {};
    uint32_t free_row = UINT32_MAX;

    uint32_t capacity() const { return first * ((1u << segments) - 1); }
    size_t segment_bytes(unsigned s) const {
        return ((size_t(first) << s) * row_size + kPage - 1) & ~(kPage - 1);
    }
    void* row(uint32_t i) const {
        const unsigned s = unsigned(std::bit_width(i / first + 1)) - 1;
        return base[s] + size_t(i - first * ((1u << s) - 1)) * row_size;
    }
    uint32_t* free_link(uint32_t i) {
        const unsigned s = unsigned(std::bit_width(i / first + 1)) - 1;
        return next_free[s] + (i - first * ((1u << s) - 1));
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
    uint32_t descriptors = 0;
    OwnFd file;
    uint64_t file_size = 0;
    uint32_t segments = 0;
    Table sockets{SegmentKind::sockets, sizeof(SocketRow), 64, true};
    Table rings{SegmentKind::rings, sizeof(RingRow), 8, false};
    Table waits{SegmentKind::waits, sizeof(WaitRow), 32, true};
    Table latencies{SegmentKind::latencies, sizeof(LatencyRow), 8, false};
    Table options{SegmentKind::options, sizeof(OptionRow), 64, false};
    Table routes{SegmentKind::routes, sizeof(RouteRow), 64, false};
    Table neighbors{SegmentKind::neighbors, sizeof(NeighborRow), 64, false};
    Table flows{SegmentKind::flows, sizeof(FlowRow), 64, false};
    Table memberships{SegmentKind::memberships, sizeof(MembershipRow), 64, false};
    Table rules{SegmentKind::rules, sizeof(RuleRow), 64, false};
    std::array<Table*, 10> tables{&sockets, &rings,     &waits, &latencies,   &options,
                                  &routes,  &neighbors, &flows, &memberships, &rules};
    // Requests of viewers that were met.
    uint64_t met[kVerbs] = {};
    uint64_t zeroing = 0;  // the request for zeroes that this publication meets, 0: none
    FdRanges zero_fds;
    Instant reader_until, last_published;
    bool lost = false;  // was_lost() has not told yet
};

// Never destroyed: threads may still be in calls while exit handlers run.
State& state() {
    alignas(State) static unsigned char memory[sizeof(State)];
    static State* made = new (memory) State;
    return *made;
}

// Maps n more bytes at the end of the file. Null and *error.
void* append(State& s, size_t n, int* error) {
    *error = reserve_blocks(s.file.fd(), s.file_size, n);
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
    if (table.recycles) {
        void* links = sys::mmap(nullptr, rows * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sys::failed(links)) return false;
        table.next_free[segment] = static_cast<uint32_t*>(links);
    }
    const uint64_t offset = s.file_size;
    int error = 0;
    void* memory = append(s, table.segment_bytes(segment), &error);
    if (memory == nullptr) {
        if (table.recycles) sys::munmap(table.next_free[segment], rows * sizeof(uint32_t));
        return false;
    }
    table.base[segment] = static_cast<uint8_t*>(memory);
    const uint32_t from = table.capacity();
    table.segments++;
    for (uint32_t i = table.recycles ? rows : 0; i-- > 0;) {
        *table.free_link(from + i) = table.free_row;
        table.free_row = from + i;
    }
    s.header->segments[count] = {table.kind, table.row_size, offset, rows};
    s.segments = count + 1;
    put(s.header->segment_count, s.segments, std::memory_order_release);
    return true;
}

void unmap(State& s) {
    if (s.header == nullptr) return;
    for (Table* table : s.tables) {
        for (unsigned i = 0; i < table->segments; i++) {
            sys::munmap(table->base[i], table->segment_bytes(i));
            if (table->recycles)
                sys::munmap(table->next_free[i], (size_t(table->first) << i) * sizeof(uint32_t));
        }
        table->segments = 0;
        table->free_row = UINT32_MAX;
    }
    sys::munmap(s.header, kFirstSegment);
    s.header = nullptr;
    s.file.reset();
    s.file_size = 0;
    s.segments = 0;
    for (uint64_t& number : s.met) number = 0;
    s.zeroing = 0;
    s.reader_until = s.last_published = {};
    s.epoch++;
}

// Unmaps the page and removes its file, unless the name is another's by now.
void give_up(State& s) {
    struct stat mine, named;
    if (sys::raw(SYS_fstat, s.file.fd(), sys::ptr(&mine)) == 0 &&
        sys::raw(SYS_newfstatat, AT_FDCWD, sys::ptr(s.path), sys::ptr(&named),
                 AT_SYMLINK_NOFOLLOW) == 0 &&
        mine.st_ino == named.st_ino && mine.st_dev == named.st_dev)
        sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(s.path), 0);
    unmap(s);
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
        const int fd = create_page_file(s.path);
        if (fd != -EEXIST || attempt == 1 || belongs_elsewhere(s.path)) return fd;
        // Refused in a sticky directory when it is another user's.
        if (const int error = int(sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(s.path), 0)))
            return error;
    }
}

static_assert(offsetof(Header, descriptors) == 152);  // tests/e2e/test_reasons.py

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
    h.descriptors = s.descriptors;
    const LogConfig log = log_config();
    h.log_level = int(log.level);
    h.log_details = log.details;
}

int make_page(State& s) {
    s.pid = uint32_t(sys::getpid());
    *page_file_name(s.path + s.directory_length, kFilePrefix, s.pid) = 0;
    const int fd = create_file(s);
    if (fd < 0) return fd;
    int error = 0;
    if (const Status kept = s.file.adopt(fd); !kept) error = -kept.error();
    void* memory = error ? nullptr : append(s, kFirstSegment, &error);
    if (memory) {
        s.header = static_cast<Header*>(memory);
        write_header(s);
        if (!grow(s, s.sockets) || !grow(s, s.rings) || !grow(s, s.waits)) error = -ENOSPC;
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

// The page, locked. Who may write to the file may also cut it short, and then a store into what is gone would be a SIGBUS: such
// a page is given up before anything is stored, and the next row makes another. A cut in the moment between is not caught.
struct Locked {
    State& state = settled();
    SpinGuard guard{state.lock};
    Locked() {
        if (state.header == nullptr) return;
        const long size = sys::raw(SYS_lseek, state.file.fd(), 0, SEEK_END);
        if (size < 0 || uint64_t(size) >= state.file_size) return;
        give_up(state);
        state.lost = true;
    }
};

// A seqlock write: fn(row) between two steps of seq.
template <class Row, class Fn>
void write_row(Row& row, Fn&& fn) {
    const uint32_t seq = row.seq | 1;
    put(row.seq, seq);
    std::atomic_thread_fence(std::memory_order_release);
    fn(row);
    put(row.seq, seq + 1, std::memory_order_release);
}

template <class Row>
Row& row_at(Table& table, uint32_t row) {
    return *static_cast<Row*>(table.row(row));
}

bool has_place(const State& s, const RowHandle& handle) {
    return s.header && handle.row != UINT32_MAX && handle.epoch == s.epoch;
}

// A free row for `handle`, whose seqlock write is the caller's. False: no room.
bool take_place(State& s, Table& table, RowHandle& handle) {
    if (table.free_row == UINT32_MAX && !grow(s, table)) return false;
    handle = {table.free_row, s.epoch};
    table.free_row = *table.free_link(handle.row);
    return true;
}

template <class Row>
void give_place(State& s, Table& table, RowHandle& handle) {
    if (has_place(s, handle)) {
        write_row(row_at<Row>(table, handle.row), [](Row& row) {
            const uint32_t seq = row.seq;
            row = {};
            row.seq = seq;
        });
        *table.free_link(handle.row) = table.free_row;
        table.free_row = handle.row;
    }
    handle = {};
}

Table& table_of(State& s, const LatencyRow*) { return s.latencies; }
Table& table_of(State& s, const OptionRow*) { return s.options; }
Table& table_of(State& s, const RouteRow*) { return s.routes; }
Table& table_of(State& s, const NeighborRow*) { return s.neighbors; }
Table& table_of(State& s, const FlowRow*) { return s.flows; }
Table& table_of(State& s, const MembershipRow*) { return s.memberships; }
Table& table_of(State& s, const RuleRow*) { return s.rules; }

// What the kernel calls a socket.
struct SocketNames {
    uint64_t inode = 0, cookie = 0;
};
SocketNames names_of(const SocketIdentity& id) {
    SocketNames names{id.inode, id.cookie};
    struct stat st;
    if (names.inode == 0 && sys::raw(SYS_fstat, id.fd, sys::ptr(&st)) == 0) names.inode = st.st_ino;
    socklen_t len = sizeof names.cookie;
    if (names.cookie == 0) sys::getsockopt(id.fd, SOL_SOCKET, SO_COOKIE, &names.cookie, &len);
    return names;
}

void copy_text(char* out, size_t room, std::string_view text) {
    const size_t n = std::min(text.size(), room - 1);
    std::memcpy(out, text.data(), n);
    std::memset(out + n, 0, room - n);
}

Control& control_of(State& s) {
    return *reinterpret_cast<Control*>(reinterpret_cast<char*>(s.header) + kControlOffset);
}
// The number of a request that is not met, or 0. Lock held, as below.
uint64_t asked_for(State& s, Verb verb) {
    uint64_t& word = control_of(s).asked[unsigned(verb)];
    const uint64_t number = std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire);
    return number == s.met[unsigned(verb)] ? 0 : number;
}
void meet(State& s, Verb verb, uint64_t number) {
    s.met[unsigned(verb)] = number;
    put(s.header->answered[unsigned(verb)], number, std::memory_order_release);
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
    int error = 0;
    {
        const Locked page;
        State& s = page.state;
        if (!have_page(s, &error)) {
            if (error == 0) return;
        } else {
            SocketNames names;
            if (has_place(s, handle)) {
                const SocketRow& row = row_at<SocketRow>(s.sockets, handle.row);
                names = {row.id.inode, row.id.cookie};
            } else {
                if (!take_place(s, s.sockets, handle)) return;
                names = names_of(identity);
            }
            write_row(row_at<SocketRow>(s.sockets, handle.row), [&](SocketRow& row) {
                row.in_use = 1;
                row.id = identity;
                row.id.inode = names.inode;
                row.id.cookie = names.cookie;
            });
        }
    }
    if (error)
        vma_log(
            warning, "stats",
            "VMA_STATS_SHMEM_DIR: cannot make {} (errno {}): vma_stats will not see this process",
            state().path, -error);
}

void set_numbers(RowHandle handle, const SocketNumbers& numbers, const TcpNumbers& tcp) {
    // Without the look at the file's length: set_socket() has had one just before.
    State& s = settled();
    SpinGuard guard(s.lock);
    if (!has_place(s, handle)) return;
    write_row(row_at<SocketRow>(s.sockets, handle.row), [&](SocketRow& row) {
        row.numbers = numbers;
        row.tcp = tcp;
        if (s.zeroing && s.zero_fds.has(row.id.fd)) row.base = numbers;
    });
}

void remove_socket(RowHandle& handle) {
    const Locked page;
    State& s = page.state;
    give_place<SocketRow>(s, s.sockets, handle);
}

bool set_ring(unsigned index, const RingIdentity& id, const RingNumbers& numbers,
              const DropCounters& drops) {
    const Locked page;
    State& s = page.state;
    if (s.header == nullptr) return false;
    while (index >= s.rings.capacity())
        if (!grow(s, s.rings)) return false;
    write_row(row_at<RingRow>(s.rings, index), [&](RingRow& row) {
        row.in_use = 1;
        row.id = id;
        row.numbers = numbers;
        if (s.zeroing) row.base = numbers;
        std::memcpy(row.drops, drops.n, sizeof drops.n);
    });
    return true;
}

void set_wait(RowHandle& handle, const WaitIdentity& id, const WaitNumbers& numbers) {
    const Locked page;
    State& s = page.state;
    if (s.header == nullptr) return;
    if (!has_place(s, handle) && !take_place(s, s.waits, handle)) return;
    write_row(row_at<WaitRow>(s.waits, handle.row), [&](WaitRow& row) {
        row.in_use = 1;
        row.id = id;
        row.numbers = numbers;
        if (s.zeroing) row.base = numbers;
    });
}

void remove_wait(RowHandle& handle) {
    const Locked page;
    State& s = page.state;
    give_place<WaitRow>(s, s.waits, handle);
}

template <class Row>
Listing<Row>::Listing() {
    const Locked page;
    State& s = page.state;
    if (s.header == nullptr) return;
    const uint32_t bit = list_bit(table_of(s, static_cast<Row*>(nullptr)).kind);
    put(s.header->listing_cut, s.header->listing_cut & ~bit);
}

template <class Row>
void Listing<Row>::add(const Row& row) {
    const Locked page;
    State& s = page.state;
    if (s.header == nullptr) return;
    Table& table = table_of(s, &row);
    if (next_ == kMostListed || (next_ == table.capacity() && !grow(s, table))) {
        put(s.header->listing_cut, s.header->listing_cut | list_bit(table.kind));
        return;
    }
    write_row(row_at<Row>(table, next_++), [&](Row& to) {
        const uint32_t seq = to.seq;
        to = row;
        to.seq = seq;
        to.in_use = 1;
    });
}

template <class Row>
Listing<Row>::~Listing() {
    const Locked page;
    State& s = page.state;
    if (s.header == nullptr) return;
    Table& table = table_of(s, static_cast<Row*>(nullptr));
    for (; next_ < table.capacity(); next_++) {
        Row& row = row_at<Row>(table, next_);
        if (row.in_use) write_row(row, [](Row& to) { to.in_use = 0; });
    }
}

template class Listing<LatencyRow>;
template class Listing<OptionRow>;
template class Listing<RouteRow>;
template class Listing<NeighborRow>;
template class Listing<FlowRow>;
template class Listing<MembershipRow>;
template class Listing<RuleRow>;

void will_publish() {
    const Locked page;
    State& s = page.state;
    s.publishing = 1;
    if (s.header) put(s.header->publishing, 1u);
}

bool due(Instant now) {
    const Locked page;
    State& s = page.state;
    if (s.header == nullptr) return false;
    const uint64_t zero = asked_for(s, Verb::zero);
    const uint64_t request = asked_for(s, Verb::counters);
    if (zero || request) {
        if (s.last_published.ns != 0 && now - s.last_published < kAnswerGap) return false;
        if (zero) s.zero_fds = control_of(s).zero_fds;
        s.zeroing = zero;
        if (request) {
            s.met[unsigned(Verb::counters)] = request;
            s.reader_until = now + kReaderActive;
        }
        return true;
    }
    return now < s.reader_until && now - s.last_published >= kPublishEvery;
}

void published(Instant now) {
    const Locked page;
    State& s = page.state;
    if (s.header == nullptr) return;
    s.last_published = now;
    put(s.header->published_ns, uint64_t(now.ns));
    if (s.zeroing) meet(s, Verb::zero, std::exchange(s.zeroing, 0));
    meet(s, Verb::counters, s.met[unsigned(Verb::counters)]);
}

uint64_t asked(Verb verb) {
    const Locked page;
    State& s = page.state;
    return s.header ? asked_for(s, verb) : 0;
}

void answer(Verb verb, uint64_t number) {
    const Locked page;
    State& s = page.state;
    if (s.header) meet(s, verb, number);
}

Control control() {
    const Locked page;
    State& s = page.state;
    Control out;
    if (s.header) std::memcpy(&out, &control_of(s), sizeof out);
    return out;
}

bool was_lost() {
    const Locked page;
    return std::exchange(page.state.lost, false);
}

void set_log_state(int level, int details) {
    const Locked page;
    State& s = page.state;
    if (s.header == nullptr) return;
    put(s.header->log_level, int32_t(level));
    put(s.header->log_details, int32_t(details));
}

void set_descriptors(uint32_t limit) {
    const Locked page;
    State& s = page.state;
    s.descriptors = limit;
    if (s.header) put(s.header->descriptors, limit);
}

void set_capture_error(int error) {
    const Locked page;
    State& s = page.state;
    if (s.header) put(s.header->capture_error, int32_t(error));
}

void set_rules(const RulesState& rules) {
    const Locked page;
    State& s = page.state;
    if (s.header == nullptr) return;
    put(s.header->rules_generation, rules.generation);
    put(s.header->rules_count, rules.count);
    put(s.header->rules_ok, uint32_t(rules.ok));
    copy_text(s.header->rules_text, sizeof s.header->rules_text, rules.text);
}

void withdraw(bool for_good) {
    const Locked page;
    State& s = page.state;
    if (s.header) {
        put(s.header->state, PageState::ended, std::memory_order_release);
        give_up(s);
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

size_t page_directory(char* out, size_t room) {
    const Locked page;
    State& s = page.state;
    const size_t n = s.header && s.directory_length < room ? s.directory_length : 0;
    std::memcpy(out, s.path, n);
    out[n] = 0;
    return n;
}

std::string_view page_path() {
    State& s = state();
    SpinGuard guard(s.lock);
    return s.header ? s.path : std::string_view{};
}

}  // namespace vma::stats
