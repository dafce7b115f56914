#include "engine/rules_watch.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <cstring>

#include "base/sys.h"

namespace vma {
namespace {

constexpr uint32_t kDirectoryEvents = IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE |
                                      IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;

int add_watch(int fd, const std::string& path, uint32_t events) {
    return int(sys::raw(SYS_inotify_add_watch, fd, sys::ptr(path.c_str()), long(events)));
}
bool stat_of(const std::string& path, struct stat& st, int flags) {
    return sys::raw(SYS_newfstatat, AT_FDCWD, sys::ptr(path.c_str()), sys::ptr(&st), flags) == 0;
}

}  // namespace

Status RulesWatch::open(std::string path) {
    const int fd = int(sys::raw(SYS_inotify_init1, IN_NONBLOCK | IN_CLOEXEC));
    if (fd < 0) return Errno{-fd};
    if (const Status kept = notify_.adopt(fd); !kept) return kept;
    path_ = std::move(path);
    const size_t slash = path_.rfind('/');
    directory_ = slash == 0 ? "/" : path_.substr(0, slash);
    name_ = path_.substr(slash + 1);
    attach();
    return {};
}

void RulesWatch::reset() {
    notify_.reset();
    directory_watch_ = file_watch_ = -1;
}

RulesWatch::Identity RulesWatch::identity() const {
    struct stat st;
    if (!stat_of(path_, st, 0)) return {};
    return {st.st_dev, st.st_ino};
}

bool RulesWatch::attach() {
    const int watch = add_watch(fd(), directory_, kDirectoryEvents);
    directory_watch_ = watch < 0 ? -1 : watch;
    follow_file();
    return directory_watch_ >= 0;
}

// The watch of a file stays with the file: another one under the name needs its own.
void RulesWatch::follow_file() {
    const int watch = add_watch(fd(), path_, IN_CLOSE_WRITE);
    const int before = file_watch_;
    file_watch_ = watch < 0 ? -1 : watch;
    if (before >= 0 && before != file_watch_) sys::raw(SYS_inotify_rm_watch, fd(), before);
    seen_ = identity();
}

// Whether an event of the file's own name means contents. A file that was just created is empty until it is closed; a link
// has its contents at once.
bool RulesWatch::own_event(uint32_t mask) const {
    if (mask & (IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE)) return true;
    struct stat st;
    return (mask & IN_CREATE) && stat_of(path_, st, AT_SYMLINK_NOFOLLOW) &&
           (S_ISLNK(st.st_mode) || st.st_nlink > 1);
}

bool RulesWatch::process() {
    alignas(inotify_event) char buffer[4096];
    bool changed = false, any = false;
    for (;;) {
        const ssize_t n = sys::read(fd(), buffer, sizeof buffer);
        if (n <= 0) break;
        any = true;
        for (ssize_t at = 0; at < n;) {
            const auto& event = *reinterpret_cast<const inotify_event*>(buffer + at);
            at += ssize_t(sizeof(inotify_event) + event.len);
            if (event.mask & IN_Q_OVERFLOW) changed = true;
            if (event.wd == file_watch_) {
                if (event.mask & IN_IGNORED) file_watch_ = -1;
                if (event.mask & IN_CLOSE_WRITE) changed = true;
            }
            if (event.wd != directory_watch_ || directory_watch_ < 0) continue;
            if (event.mask & IN_MOVE_SELF) sys::raw(SYS_inotify_rm_watch, fd(), event.wd);
            if (event.mask & (IN_IGNORED | IN_DELETE_SELF | IN_MOVE_SELF)) {
                directory_watch_ = -1;
                changed = true;
            } else if (event.len && name_ == event.name) {
                changed |= own_event(event.mask);
            }
        }
    }
    if (!any) return false;
    // A link on the way to the file was pointed elsewhere; under its own name the events above have told.
    struct stat st;
    if (stat_of(path_, st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode) && identity() != seen_)
        changed = true;
    if (changed) follow_file();
    return changed;
}

bool RulesWatch::retry() { return active() && directory_watch_ < 0 && attach(); }

}  // namespace vma
