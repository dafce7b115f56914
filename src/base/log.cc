#include "base/log.h"

#include <strings.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/own_fd.h"
#include "base/sys.h"

namespace vma {
namespace {

struct LevelName {
    LogLevel level;
    const char* name;
    const char* colour;
};
constexpr LevelName kLevels[] = {
    {LogLevel::none, "NONE", "\033[0;31m"},   {LogLevel::panic, "PANIC", "\033[0;31m"},
    {LogLevel::error, "ERROR", "\033[0;31m"}, {LogLevel::warning, "WARNING", "\033[2;35m"},
    {LogLevel::info, "INFO", "\033[0m"},      {LogLevel::details, "DETAILS", "\033[0m"},
    {LogLevel::debug, "DEBUG", "\033[0m"},    {LogLevel::fine, "FINE", "\033[2m"},
    {LogLevel::finer, "FINER", "\033[2m"},    {LogLevel::all, "ALL", "\033[2m"},
};
constexpr struct {
    const char* text;
    LogLevel level;
} kSpellings[] = {
    {"none", LogLevel::none},        {"panic", LogLevel::panic},   {"0", LogLevel::panic},
    {"error", LogLevel::error},      {"1", LogLevel::error},       {"warn", LogLevel::warning},
    {"warning", LogLevel::warning},  {"2", LogLevel::warning},     {"info", LogLevel::info},
    {"information", LogLevel::info}, {"3", LogLevel::info},        {"details", LogLevel::details},
    {"debug", LogLevel::debug},      {"4", LogLevel::debug},       {"fine", LogLevel::fine},
    {"func", LogLevel::fine},        {"5", LogLevel::fine},        {"finer", LogLevel::finer},
    {"func+", LogLevel::finer},      {"funcall", LogLevel::finer}, {"func_all", LogLevel::finer},
    {"func-all", LogLevel::finer},   {"6", LogLevel::finer},       {"all", LogLevel::all},
};
constexpr const char* kColourEnd = "\033[0m";

std::atomic<int> details{0};
std::atomic<bool> colours{false};
std::atomic<int> out_fd{2};
std::atomic<const OwnFd*> out_file{nullptr};
std::atomic<LogCallback> callback{nullptr};
std::atomic<int64_t (*)()> clock_ns{nullptr};
std::atomic<int64_t> start_ns{0};

// Appends to a fixed buffer, keeping room for the ending; what does not fit is dropped and remembered.
class LineBuffer {
  public:
    template <class... Args>
    void add(fmt::format_string<Args...> format, Args&&... args) {
        vadd(format, fmt::make_format_args(args...));
    }
    void vadd(fmt::string_view format, fmt::format_args args) {
        const size_t room = kRoom - size_;
        const auto r = fmt::vformat_to_n(data_ + size_, room, format, args);
        size_ += std::min(r.size, room);
        cut_ |= r.size > room;
    }
    void text(std::string_view s) {
        const size_t n = std::min(s.size(), kRoom - size_);
        std::memcpy(data_ + size_, s.data(), n);
        size_ += n;
        cut_ |= n < s.size();
    }
    // Ends the line: "..." when cut, the colour's end, newline, NUL. Fits always.
    void finish(bool coloured) {
        if (cut_) append("...");
        if (coloured) append(kColourEnd);
        append("\n");
        data_[size_] = '\0';
    }
    const char* data() const { return data_; }
    size_t size() const { return size_; }

  private:
    static constexpr size_t kRoom = kLogLineMax - 16;
    void append(const char* s) {
        const size_t n = std::strlen(s);
        std::memcpy(data_ + size_, s, n);
        size_ += n;
    }
    char data_[kLogLineMax];
    size_t size_ = 0;
    bool cut_ = false;
};

bool start_line(LineBuffer& line, LogLevel level) {
    const bool coloured = colours.load(std::memory_order_relaxed);
    const int detail = details.load(std::memory_order_relaxed);
    if (coloured) line.text(kLevels[int(level) + 1].colour);
    if (detail >= 3) {
        const auto now = clock_ns.load(std::memory_order_relaxed);
        const double ms =
            now ? double(now() - start_ns.load(std::memory_order_relaxed)) / 1e6 : 0.0;
        line.add(" Time: {:9.3f}", ms);
    }
    if (detail >= 2) line.add(" Pid: {:5}", unsigned(sys::getpid()));
    if (detail >= 1) line.add(" Tid: {:5}", unsigned(sys::gettid()));
    line.add(" VMA {}: ", log_level_name(level));
    return coloured;
}

void write_line(LogLevel level, const LineBuffer& line) {
    if (const LogCallback receive = callback.load(std::memory_order_acquire)) {
        const int saved = errno;
        receive(int(level), line.data());
        errno = saved;
        return;
    }
    // A short or interrupted write is finished; any other failure loses the line: there is nowhere to report it.
    const OwnFd* const file = out_file.load(std::memory_order_acquire);
    const int fd = file ? file->fd() : out_fd.load(std::memory_order_relaxed);
    for (size_t done = 0; done < line.size();) {
        const ssize_t n = sys::write(fd, line.data() + done, line.size() - done);
        if (n == -EINTR) continue;
        if (n <= 0) return;
        done += size_t(n);
    }
}

LogLevel capped(LogLevel level) { return std::clamp(level, LogLevel::none, kMaxLogLevel); }

}  // namespace

namespace log_detail {

std::atomic<int> level{int(LogLevel::info)};

bool Site::admit(uint32_t* skipped) {
    *skipped = 0;
    const auto now_fn = clock_ns.load(std::memory_order_relaxed);
    if (now_fn != nullptr) {
        const int64_t now = now_fn();
        int64_t start = window_start.load(std::memory_order_relaxed);
        // The thread that moves the window on also empties it.
        if ((start == 0 || now - start >= kWindowNs) &&
            window_start.compare_exchange_strong(start, now, std::memory_order_relaxed))
            in_window.store(0, std::memory_order_relaxed);
    }
    const uint32_t n = in_window.fetch_add(1, std::memory_order_relaxed) + 1;
    if (n <= kBurst || (now_fn == nullptr && std::has_single_bit(n))) {
        *skipped = suppressed.exchange(0, std::memory_order_relaxed);
        return true;
    }
    suppressed.fetch_add(1, std::memory_order_relaxed);
    return false;
}

void emit(LogLevel lvl, std::string_view area, Site* site, fmt::string_view format,
          fmt::format_args args) {
    uint32_t skipped = 0;
    if (site != nullptr && !site->admit(&skipped)) return;
    LineBuffer line;
    const bool coloured = start_line(line, lvl);
    if (lvl >= LogLevel::debug && !area.empty()) {
        line.text(area);
        line.text(": ");
    }
    line.vadd(format, args);
    if (skipped != 0) line.add(" [{} similar lines not shown]", skipped);
    line.finish(coloured);
    write_line(lvl, line);
}

}  // namespace log_detail

void log_text(LogLevel level, std::string_view text) {
    if (!log_enabled(level)) return;
    LineBuffer line;
    const bool coloured = start_line(line, level);
    line.text(text);
    line.finish(coloured);
    write_line(level, line);
}

void log_configure(const LogConfig& config) {
    clock_ns.store(config.now_ns, std::memory_order_relaxed);
    start_ns.store(config.now_ns ? config.now_ns() : 0, std::memory_order_relaxed);
    log_set_details(config.details);
    colours.store(config.colours, std::memory_order_relaxed);
    out_fd.store(config.fd, std::memory_order_relaxed);
    out_file.store(config.file, std::memory_order_release);
    callback.store(config.callback, std::memory_order_release);
    log_set_level(config.level);
}

LogConfig log_config() {
    LogConfig c;
    c.level = LogLevel(log_detail::level.load(std::memory_order_relaxed));
    c.details = details.load(std::memory_order_relaxed);
    c.colours = colours.load(std::memory_order_relaxed);
    c.fd = out_fd.load(std::memory_order_relaxed);
    c.file = out_file.load(std::memory_order_relaxed);
    c.callback = callback.load(std::memory_order_relaxed);
    c.now_ns = clock_ns.load(std::memory_order_relaxed);
    return c;
}

void log_set_level(LogLevel level) {
    log_detail::level.store(int(capped(level)), std::memory_order_relaxed);
}
void log_set_details(int n) { details.store(std::clamp(n, 0, 3), std::memory_order_relaxed); }

const char* log_level_name(LogLevel level) {
    const int index = int(level) + 1;
    return index >= 0 && index < int(std::size(kLevels)) ? kLevels[index].name : "?";
}

std::optional<LogLevel> log_level_from_text(std::string_view text) {
    for (const auto& s : kSpellings)
        if (text.size() == std::strlen(s.text) &&
            strncasecmp(text.data(), s.text, text.size()) == 0)
            return s.level;
    return std::nullopt;
}

}  // namespace vma
