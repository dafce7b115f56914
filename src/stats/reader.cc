#include "stats/reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/process.h"
#include "stats/preload.h"

namespace vma::stats {
namespace {

constexpr uint64_t kMostRows =
    1u << 20;  // of one segment: as many as a process can have descriptors
constexpr int kRowTries = 100;

std::string errno_text(int error) { return std::strerror(error); }

// Reads exactly n bytes at `offset`; false when the file ends before.
bool read_all(int fd, void* out, size_t n, uint64_t offset) {
    auto* to = static_cast<char*>(out);
    while (n > 0) {
        const ssize_t got = pread(fd, to, n, off_t(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        to += got;
        n -= size_t(got);
        offset += uint64_t(got);
    }
    return true;
}

// Whether `owner` is one of the user ids that process `pid` runs or ran under: the file's maker is the process.
bool runs_as(uint32_t pid, uid_t owner) {
    if (owner == 0) return true;
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    std::string line;
    while (std::getline(status, line)) {
        if (line.rfind("Uid:", 0) != 0) continue;
        std::istringstream ids(line.substr(4));
        for (uid_t id; ids >> id;)
            if (id == owner) return true;
        return false;
    }
    return true;  // no such process or not to be seen: nothing to compare
}

// Reads the rows of a segment so that none is torn; those that stay so are left out. One copy by the kernel (rep movs) may
// take a row's last line before its first, so that the sequence number of a copy says nothing of that copy: what is kept was
// read between two reads that found the same even number.
template <class Row>
bool read_stable(int fd, const Segment& segment, std::vector<Row>& out) {
    std::vector<Row> before(segment.rows), after(segment.rows);
    out.resize(segment.rows);
    const size_t bytes = segment.rows * sizeof(Row);
    for (std::vector<Row>* rows : {&before, &out, &after})
        if (!read_all(fd, rows->data(), bytes, segment.offset)) return false;
    for (size_t i = 0; i < out.size(); i++) {
        uint32_t first = before[i].seq, last = after[i].seq;
        const uint64_t at = segment.offset + i * sizeof(Row), seq_at = at + offsetof(Row, seq);
        for (int tries = 0; (first & 1) != 0 || first != last; tries++) {
            if (tries == kRowTries) {
                out[i] = {};
                break;
            }
            if (!read_all(fd, &first, sizeof first, seq_at) ||
                !read_all(fd, &out[i], sizeof(Row), at) ||
                !read_all(fd, &last, sizeof last, seq_at))
                return false;
        }
    }
    return true;
}

enum class Taken { whole, damaged, cut_short, unknown };

// Adds the rows of a segment; `all`: also those not in use.
template <class Row>
Taken take_rows(int fd, uint64_t size, const Segment& s, std::vector<Row>& out, bool all) {
    if (s.row_size != sizeof(Row) || s.rows > kMostRows || s.offset < kFirstSegment ||
        s.offset % 64 != 0)
        return Taken::damaged;
    if (s.offset > size || s.rows * sizeof(Row) > size - s.offset) return Taken::cut_short;
    std::vector<Row> rows;
    if (!read_stable(fd, s, rows)) return Taken::cut_short;
    for (const Row& row : rows)
        if (all || row.in_use) out.push_back(row);
    return Taken::whole;
}

std::string file_name(uint32_t pid) { return std::string(kFilePrefix) + std::to_string(pid); }

std::string joined(const std::string& directory, const std::string& name) {
    return directory.empty() || directory.back() == '/' ? directory + name : directory + "/" + name;
}

}  // namespace

std::string printable(const char* text, size_t room) {
    std::string out(text, strnlen(text, room));
    for (char& c : out)
        if (c < 0x20 || c > 0x7e) c = '?';
    return out;
}

PageFile::PageFile(PageFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      pid_(other.pid_),
      writable_(other.writable_),
      start_ticks_(other.start_ticks_),
      pid_namespace_(other.pid_namespace_),
      name_(std::move(other.name_)) {
    std::copy(std::begin(other.asked_), std::end(other.asked_), asked_);
}

PageFile::~PageFile() {
    if (fd_ >= 0) close(fd_);
}

std::optional<PageFile> PageFile::open(const std::string& directory, uint32_t pid,
                                       std::string* why) {
    PageFile page;
    page.pid_ = pid;
    page.name_ = joined(directory, file_name(pid));
    constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
    page.writable_ = true;
    page.fd_ = ::open(page.name_.c_str(), O_RDWR | kFlags);
    if (page.fd_ < 0 && (errno == EACCES || errno == EROFS || errno == EPERM)) {
        page.writable_ = false;
        page.fd_ = ::open(page.name_.c_str(), O_RDONLY | kFlags);
    }
    if (page.fd_ < 0) {
        *why = errno == ENOENT  ? fmt::format("no page {}: {}", page.name_, why_no_page(pid))
               : errno == ELOOP ? fmt::format("{} is a symbolic link: not a page", page.name_)
                                : fmt::format("{}: {}", page.name_, errno_text(errno));
        return std::nullopt;
    }
    struct stat st;
    if (fstat(page.fd_, &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink > 1) {
        *why = fmt::format("{} is not a regular file with one name: not a page", page.name_);
        return std::nullopt;
    }
    Header header;
    if (!page.read_header(header, why)) return std::nullopt;
    if (header.pid != pid) {
        *why = fmt::format("{} says it is of process {}: not a page of {}", page.name_, header.pid,
                           pid);
        return std::nullopt;
    }
    if (header.pid_namespace == vma::pid_namespace() && !runs_as(pid, st.st_uid)) {
        *why = fmt::format("{} belongs to user {}, who does not run process {}: not its page",
                           page.name_, st.st_uid, pid);
        return std::nullopt;
    }
    page.start_ticks_ = header.start_ticks;
    page.pid_namespace_ = header.pid_namespace;
    return page;
}

bool PageFile::read_header(Header& out, std::string* why) const {
    if (!read_all(fd_, &out, sizeof out, 0)) {
        *why = fmt::format("{} is cut short: no whole header", name_);
        return false;
    }
    if (std::memcmp(out.magic, kMagic, sizeof kMagic) != 0) {
        *why = fmt::format("{} is not a statistics page of this library (wrong magic)", name_);
        return false;
    }
    if (out.version != kVersion || out.header_size != sizeof(Header)) {
        *why = fmt::format(
            "{} has layout version {}, this vma_stats reads {}: use the vma_stats of that library",
            name_, out.version, kVersion);
        return false;
    }
    return true;
}

bool PageFile::read(Snapshot& out, std::string* why) const {
    out = {};
    if (!read_header(out.header, why)) return false;
    if (out.header.state != PageState::ready) {
        *why = out.header.state == PageState::ended ? fmt::format("process {} has ended", pid_)
                                                    : fmt::format("{} is still being made", name_);
        return false;
    }
    struct stat st;
    if (fstat(fd_, &st) != 0) {
        *why = fmt::format("{}: {}", name_, errno_text(errno));
        return false;
    }
    out.program = printable(out.header.program, sizeof out.header.program);
    const auto size = uint64_t(st.st_size);
    if (out.header.segment_count > kMaxSegments) {
        *why = fmt::format("{} is damaged: {} segments", name_, out.header.segment_count);
        return false;
    }
    for (uint32_t i = 0; i < out.header.segment_count; i++) {
        const Segment& s = out.header.segments[i];
        Taken taken = Taken::unknown;
        switch (s.kind) {
            case SegmentKind::sockets:
                taken = take_rows(fd_, size, s, out.sockets, false);
                break;
            case SegmentKind::rings:
                taken = take_rows(fd_, size, s, out.rings, true);
                break;
            case SegmentKind::waits:
                taken = take_rows(fd_, size, s, out.waits, false);
                break;
            case SegmentKind::latencies:
                taken = take_rows(fd_, size, s, out.latencies, false);
                break;
            case SegmentKind::options:
                taken = take_rows(fd_, size, s, out.options, false);
                break;
            case SegmentKind::routes:
                taken = take_rows(fd_, size, s, out.routes, false);
                break;
            case SegmentKind::neighbors:
                taken = take_rows(fd_, size, s, out.neighbors, false);
                break;
            case SegmentKind::flows:
                taken = take_rows(fd_, size, s, out.flows, false);
                break;
            case SegmentKind::memberships:
                taken = take_rows(fd_, size, s, out.memberships, false);
                break;
            case SegmentKind::rules:
                taken = take_rows(fd_, size, s, out.rules, false);
                break;
            case SegmentKind::end:
                break;
        }
        if (taken == Taken::damaged) {
            *why = fmt::format("{} is damaged: segment {} has {} rows of {} bytes at {}", name_, i,
                               s.rows, s.row_size, s.offset);
            return false;
        }
        if (taken == Taken::cut_short) {
            *why = fmt::format("{} is cut short: segment {} ends beyond the file", name_, i);
            return false;
        }
    }
    return true;
}

int PageFile::ask(Verb verb, const Control& parameters) {
    if (!writable_) return EROFS;
    Header header;
    uint64_t now = 0;
    const size_t word = kControlOffset + offsetof(Control, asked) + unsigned(verb) * sizeof now;
    std::string why;
    if (!read_header(header, &why) || !read_all(fd_, &now, sizeof now, word)) return EIO;
    // The parameters first: whoever sees the new number sees them.
    constexpr size_t kBegin = offsetof(Control, log_level);
    const auto* bytes = reinterpret_cast<const char*>(&parameters);
    const size_t count = sizeof parameters - kBegin;
    if (verb != Verb::counters && verb != Verb::reload &&
        pwrite(fd_, bytes + kBegin, count, off_t(kControlOffset + kBegin)) != ssize_t(count))
        return errno ? errno : EIO;
    uint64_t& asked = asked_[unsigned(verb)];
    asked = now + 1;
    if (pwrite(fd_, &asked, sizeof asked, off_t(word)) != ssize_t(sizeof asked))
        return errno ? errno : EIO;
    return header.publishing ? 0 : EAGAIN;
}

bool PageFile::answered(Verb verb) const {
    Header now;
    return header(now) && now.answered[unsigned(verb)] >= asked_[unsigned(verb)];
}

bool PageFile::header(Header& out) const {
    std::string why;
    return read_header(out, &why);
}

bool PageFile::process_lives() const {
    if (pid_namespace_ != 0 && pid_namespace_ != pid_namespace())
        return true;  // its number means nothing here
    return process_alive(pid_, start_ticks_);
}

std::vector<uint32_t> list_pages(const std::string& directory, std::string* why) {
    std::vector<uint32_t> pids;
    DIR* dir = opendir(directory.empty() ? "." : directory.c_str());
    if (dir == nullptr) {
        *why = fmt::format("{}: {}", directory, errno_text(errno));
        return pids;
    }
    while (const dirent* entry = readdir(dir)) {
        const char *begin = entry->d_name, *end = begin + std::strlen(begin);
        if (std::strncmp(begin, kFilePrefix, sizeof kFilePrefix - 1) != 0) continue;
        uint32_t pid = 0;
        const auto [stop, error] = std::from_chars(begin + sizeof kFilePrefix - 1, end, pid);
        if (error == std::errc() && stop == end && pid != 0 && file_name(pid) == begin)
            pids.push_back(pid);
    }
    closedir(dir);
    std::sort(pids.begin(), pids.end());
    return pids;
}

namespace {

// A page takes milliseconds to begin.
constexpr time_t kBegun = 10;  // seconds

// The page of a process that is gone. Its number may be another's by now, also another user's, so what counts is what the page
// says; of one that was killed before it had said anything, how long that is ago.
bool is_stale(const std::string& path, uint32_t pid) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return false;
    struct stat st;
    const bool is_file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1;
    Header header;  // zeros
    const bool is_whole = is_file && read_all(fd, &header, sizeof header, 0);
    close(fd);
    if (!is_file) return false;
    constexpr char kNothing[sizeof kMagic] = {};
    if (st.st_size == 0 || (is_whole && std::memcmp(header.magic, kNothing, sizeof kNothing) == 0))
        return st.st_mtime + kBegun < time(nullptr) && !process_alive(pid, 0);
    return is_whole && std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 &&
           header.version == kVersion && header.pid == pid &&
           (header.pid_namespace == 0 || header.pid_namespace == pid_namespace()) &&
           !process_alive(pid, header.start_ticks);
}

}  // namespace

unsigned remove_stale_pages(const std::string& directory) {
    unsigned removed = 0;
    std::string why;
    for (const uint32_t pid : list_pages(directory, &why)) {
        const std::string path = joined(directory, file_name(pid));
        if (is_stale(path, pid) && unlink(path.c_str()) == 0) removed++;
    }
    return removed;
}

}  // namespace vma::stats
