// The log: one line formatted into a stack buffer and written with one write(2); no malloc, no stdio, errno untouched.
//
//   vma_log(warning, "config", "VMA_{} is {}", name, value);
//
// The area is printed at debug and above only, so that the lines users know keep their exact form:
//   <colour>[ Time: ms][ Pid: n][ Tid: n] VMA LEVEL: text
// Lines longer than kLogLineMax are cut and end in "...". Thread rules: any thread, also in a signal handler and in a
// forked child. Until log_configure is called, lines of level info and below go to standard error.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace vma {

// VMA's internal numbers: those of the statistics page, the callback and dump_fd_stats. The digits that VMA_TRACELEVEL
// accepts are others (log_level_from_text).
enum class LogLevel : int {
    none = -1,
    panic,
    error,
    warning,
    info,
    details,
    debug,
    fine,
    finer,
    all
};

// Levels above this are compiled out (-DVMA_MAX_LOG_LEVEL=8 keeps all).
#ifndef VMA_MAX_LOG_LEVEL
#define VMA_MAX_LOG_LEVEL 5
#endif
inline constexpr LogLevel kMaxLogLevel = LogLevel(VMA_MAX_LOG_LEVEL);
inline constexpr size_t kLogLineMax = 2048;  // bytes of a whole line

class OwnFd;

using LogCallback = void (*)(int level,
                             const char* line);  // line: NUL terminated, with its newline

struct LogConfig {
    LogLevel level = LogLevel::info;
    int details = 0;       // 0..3
    bool colours = false;  // the caller asks isatty: colours are for terminals
    int fd = 2;            // borrowed
    const OwnFd* file =
        nullptr;  // instead of fd, wherever it is moved to; lives to the process's end
    LogCallback callback = nullptr;  // when set, receives the lines instead of fd
    int64_t (*now_ns)() =
        nullptr;  // monotonic clock for details 3 and the rate limit; null: no time
};

void log_configure(const LogConfig&);  // takes effect field by field; not for data paths
LogConfig log_config();
void log_set_level(LogLevel);  // above kMaxLogLevel: kMaxLogLevel
void log_set_details(int);     // clamped to 0..3

const char* log_level_name(LogLevel);  // "INFO"; "?" out of range
// VMA_TRACELEVEL's spelling: a name in any case or VMA's digit.
std::optional<LogLevel> log_level_from_text(std::string_view);

namespace log_detail {
extern std::atomic<int> level;

// One per call site: at most kBurst lines per kWindow, the rest is counted and reported with the next line. Without a
// clock: the first kBurst, then those whose count is a power of two.
struct Site {
    static constexpr uint32_t kBurst = 20;
    static constexpr int64_t kWindowNs = 10'000'000'000;
    std::atomic<int64_t> window_start{0};
    std::atomic<uint32_t> in_window{0};
    std::atomic<uint32_t> suppressed{0};
    // Whether to print; *skipped: lines not printed since the last one that was.
    bool admit(uint32_t* skipped);
};

void emit(LogLevel, std::string_view area, Site*, fmt::string_view format, fmt::format_args);

template <class... Args>
void line(LogLevel lvl, std::string_view area, Site* site, fmt::format_string<Args...> format,
          Args&&... args) {
    emit(lvl, area, site, format, fmt::make_format_args(args...));
}
}  // namespace log_detail

inline bool log_enabled(LogLevel lvl) {
    return lvl <= kMaxLogLevel && int(lvl) <= log_detail::level.load(std::memory_order_relaxed);
}
// One line of ready text, never rate limited: the banner, tables.
void log_text(LogLevel, std::string_view text);

// lvl: a bare LogLevel name. Rate limited per call site up to level details; debug and above is printed in full.
#define vma_log(lvl, area, ...)                                                              \
    do {                                                                                     \
        if constexpr (::vma::LogLevel::lvl <= ::vma::kMaxLogLevel) {                         \
            if (::vma::log_enabled(::vma::LogLevel::lvl)) {                                  \
                static ::vma::log_detail::Site vma_log_site;                                 \
                ::vma::log_detail::line(                                                     \
                    ::vma::LogLevel::lvl, area,                                              \
                    ::vma::LogLevel::lvl < ::vma::LogLevel::debug ? &vma_log_site : nullptr, \
                    __VA_ARGS__);                                                            \
            }                                                                                \
        }                                                                                    \
    } while (0)

}  // namespace vma
