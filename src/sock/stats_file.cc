// VMA_STATS_FILE: what a socket has done, when it is closed.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "base/own_fd.h"
#include "base/spin_lock.h"
#include "engine/runtime.h"
#include "sock/socket.h"
#include "sock/stats_rows.h"
#include "stats/socket_text.h"

namespace vma::sock {
namespace {

SpinLock g_file_lock;
OwnFd g_file;  // closed in a forked child, which opens its own
bool g_refused = false;

bool wanted() { return !Runtime::options().stats_file.empty() || log_enabled(LogLevel::debug); }

// One write(2) at the end of the file: several processes may share it.
void append(const char* text, size_t n) {
    const std::string& name = Runtime::options().stats_file;
    SpinGuard guard(g_file_lock);
    if (g_refused) return;
    if (!g_file.valid()) {
        const int fd = int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr(name.c_str()),
                                    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
        const int error = fd < 0 ? -fd : g_file.adopt(fd).error();
        if (error) {
            g_refused = true;
            vma_log(warning, "stats", "VMA_STATS_FILE: cannot open {} (errno {})", name, error);
            return;
        }
    }
    sys::write(g_file.fd(), text, n);
}

}  // namespace

void Socket::tell_what_it_did() {
    if (!wanted()) return;
    const std::lock_guard guard(control_);
    stats_closed(*this);
}

void stats_closed(Socket& socket) {
    if (!wanted() || std::exchange(socket.told, true)) return;
    const Socket::Shown shown = socket.show();
    char text[stats::kSocketTextRoom];
    stats_report({text, stats::socket_text(text, sizeof text, shown.id, shown.numbers, shown.tcp)},
                 LogLevel::debug);
}

void stats_report(std::string_view block, LogLevel level) {
    constexpr size_t kSeparator = sizeof stats::kSocketSeparator - 1;
    if (!Runtime::options().stats_file.empty()) {
        char text[kSeparator + stats::kSocketTextRoom];
        std::memcpy(text, stats::kSocketSeparator, kSeparator);
        const size_t n = block.copy(text + kSeparator, stats::kSocketTextRoom);
        append(text, kSeparator + n);
    }
    if (!log_enabled(level)) return;
    while (!block.empty()) {
        const size_t length = std::min(block.find('\n'), block.size());
        log_text(level, block.substr(0, length));
        block.remove_prefix(std::min(length + 1, block.size()));
    }
}

void stats_file_forget_in_child() { new (&g_file_lock) SpinLock; }

void stats_end() {
    if (!Runtime::started() || Runtime::options().stats_file.empty()) return;
    append(stats::kSocketSeparator, sizeof stats::kSocketSeparator - 1);
}

}  // namespace vma::sock
