#include "stats/publisher_state.h"

#include <errno.h>
#include <fcntl.h>

#include <new>

#include "base/log.h"
#include "base/process.h"
#include "base/sys.h"
#include "stats/page_file.h"
#include "stats/publisher.h"

namespace vma::stats {
namespace {

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

static_assert(offsetof(Header, descriptors) == 152);  // tests/e2e/test_reasons.py

void write_header(PublisherState& s) {
    Header& h = s.page.header();
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

int make_image(PublisherState& s) {
    s.pid = uint32_t(sys::getpid());
    *page_file_name(s.path + s.directory_length, kFilePrefix, s.pid) = 0;
    if (const int error = s.page.make()) return error;
    write_header(s);
    for (Table* table : {&s.sockets, &s.rings, &s.waits})
        if (!table->grow(s.page)) return -ENOMEM;
    return 0;
}

// A file of ours under s.path, which viewers have asked for nothing yet.
int make_file(PublisherState& s) {
    s.wishes = {};
    std::memset(s.met, 0, sizeof s.met);
    std::memset(s.page.header().answered, 0, sizeof s.met);
    s.zeroing = 0;
    s.reader_until = s.last_published = {};
    for (int attempt = 0;; attempt++) {
        const int error = s.page.show_in(s.path);
        if (error != -EEXIST || attempt == 1 || belongs_elsewhere(s.path)) return error;
        // Refused in a sticky directory when it is another user's.
        if (const int refused = int(sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(s.path), 0)))
            return refused;
    }
}

}  // namespace

constinit ForEver g_publisher;

void drop_page(PublisherState& s) {
    if (!s.page.exists()) return;
    for (Table* table : s.tables) table->forget();
    s.page.drop();
    s.epoch++;
}

bool make_page(PublisherState& s, int* error) {
    if (s.refused || s.directory_length == 0) return false;
    s.mended |= s.page.lost();
    if (!s.page.exists()) *error = make_image(s);
    if (*error == 0) *error = make_file(s);
    if (s.page.lost()) *error = 0;  // cut again meanwhile: the next call tries again
    if (*error == 0) return true;
    s.refused = true;
    drop_page(s);
    return false;
}

void say_why_there_is_no_page(int error) {
    vma_log(warning, "stats",
            "VMA_STATS_SHMEM_DIR: cannot make {} (errno {}): vma_stats will not see this process",
            publisher_state().path, -error);
}

void configure(std::string_view directory, std::string_view program, std::string_view library) {
    PublisherState& s = publisher_state();
    SpinGuard guard(s.lock);
    if (s.page.exists()) return;
    s.directory_length = 0;
    s.refused = false;
    copy_text(s.program, sizeof s.program, program);
    copy_text(s.library, sizeof s.library, library);
    if (directory.empty() || directory.size() > 4094) return;
    std::memcpy(s.path, directory.data(), directory.size());
    s.directory_length = directory.size();
    if (s.path[s.directory_length - 1] != '/') s.path[s.directory_length++] = '/';
}

void withdraw(bool for_good) {
    const LockedPage page;
    PublisherState& s = page.state;
    if (s.page.exists()) {
        s.page.put(s.page.header().state, PageState::ended);
        s.page.remove_file();
        drop_page(s);
    }
    if (for_good) s.refused = true;
}

void forget_in_child() {
    PublisherState& s = publisher_state();
    new (&s.lock) SpinLock;
    drop_page(s);
    s.refused = false;
    s.publishing = 0;
}

size_t page_directory(char* out, size_t room) {
    const LockedPage page;
    PublisherState& s = page.state;
    const size_t n = s.page.exists() && s.directory_length < room ? s.directory_length : 0;
    std::memcpy(out, s.path, n);
    out[n] = 0;
    return n;
}

std::string_view page_path() {
    PublisherState& s = publisher_state();
    SpinGuard guard(s.lock);
    return s.page.shown() ? s.path : std::string_view{};
}

}  // namespace vma::stats
