// vma_stats: shows the statistics pages of preloaded processes (src/stats/layout.h) and asks them for things. Options as
// VMA's vma_stats, and commands of its own (docs/STATS.md).
// Exit status: 0, also when the process ends meanwhile; 1 for a bad option, when there is no process to show, or when it did
// not do what it was asked for.
#include <errno.h>
#include <fmt/format.h>
#include <limits.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "stats/doctor.h"
#include "stats/record.h"
#include "stats/serve.h"
#include "stats/session.h"
#include "stats/top.h"
#include "stats/views.h"

namespace {

using namespace vma;
using namespace vma::stats;

constexpr unsigned kHeaderEvery = 24;  // lines of views 1 and 2

struct Options {
    Selection which;
    bool forbid_clean = false, json = false, prometheus = false, version = false, reload = false;
    bool zero = false;
    double interval_s = 1;
    unsigned cycles = 0;
    int view = 1, details = 1;
    std::string sockets, log_level, latency;
    int log_details = kKeep;
    std::vector<std::string> fd_dump;
    std::vector<std::string> dumps;
    int listen_port = -1;
    FdRanges fds;  // of `sockets`
    uint32_t lists = list_bit(SegmentKind::latencies) | list_bit(SegmentKind::memberships);
};

const std::map<std::string, SegmentKind> kListings = {{"route", SegmentKind::routes},
                                                      {"neigh", SegmentKind::neighbors},
                                                      {"flows", SegmentKind::flows},
                                                      {"options", SegmentKind::options},
                                                      {"rules", SegmentKind::rules}};

// "3-7,9": at most kFdRanges pieces. False: not that.
bool parse_ranges(const std::string& text, FdRanges& out) {
    const char *at = text.data(), *end = at + text.size();
    for (FdRange& range : out.range) {
        auto first = std::from_chars(at, end, range.first);
        if (first.ec != std::errc() || range.first < 0) return false;
        range.last = range.first;
        at = first.ptr;
        if (at < end && *at == '-') {
            const auto last = std::from_chars(at + 1, end, range.last);
            if (last.ec != std::errc() || range.last < range.first) return false;
            at = last.ptr;
        }
        if (at == end) return true;
        if (*at++ != ',') return false;
    }
    return false;
}

FdRanges everything() {
    FdRanges all;
    all.range[0] = {0, INT_MAX};
    return all;
}

// fn(page) for the selected page, or the first; what cannot be done is said. The exit status.
template <class Fn>
int for_page(const Options& options, Fn&& fn) {
    std::vector<PageFile> pages = select_pages(options.which, false);
    if (pages.empty())
        say(fmt::format("no preloaded process found in {}", options.which.directory));
    bool ok = !pages.empty();
    for (PageFile& page : pages) ok &= fn(page);
    return ok ? 0 : 1;
}

// Has a process read its rules file again, and tells how that went. True: the rules are in force, or will be.
bool reload(PageFile& page) {
    Header header;
    if (page.header(header) && header.publishing == 0 && page.ask(Verb::reload) == EAGAIN) {
        print(
            fmt::format("process {}: will read its rules again at its next socket\n", page.pid()));
        return true;
    }
    if (!ask(page, Verb::reload) || !page.header(header)) return false;
    const std::string text =
        fmt::format("process {}: {} (generation {}, {} rules in force)\n", page.pid(),
                    printable(header.rules_text, sizeof header.rules_text), header.rules_generation,
                    header.rules_count);
    if (!header.rules_ok) {
        std::fputs(text.c_str(), stderr);
        return false;
    }
    print(text);
    return true;
}

bool dump_descriptor(const Options& options, PageFile& page) {
    Control wish;
    wish.dump_fd = std::atoi(options.fd_dump[0].c_str());
    wish.dump_level = int(options.fd_dump.size() > 1
                              ? log_level_from_text(options.fd_dump[1]).value_or(LogLevel::info)
                              : LogLevel::info);
    if (!ask(page, Verb::dump, wish)) return false;
    print(fmt::format(
        "process {}: state of {} is in its log, at level {}\n", page.pid(),
        wish.dump_fd ? fmt::format("descriptor {}", wish.dump_fd) : std::string("all descriptors"),
        log_level_name(LogLevel(wish.dump_level))));
    return true;
}

// Log level, zeroes and latency histograms, as the options ask. False: it did not happen, and that was said.
bool configure(const Options& options, PageFile& page) {
    bool ok = true;
    if (!options.log_level.empty() || options.log_details != kKeep) {
        Control wish;
        wish.log_level =
            options.log_level.empty() ? kKeep : int(*log_level_from_text(options.log_level));
        wish.log_details = options.log_details;
        ok &= ask(page, Verb::log, wish);
    }
    if (!options.latency.empty()) {
        Control wish;
        wish.latency_on = options.latency == "on";
        wish.latency_fds = options.fds;
        ok &= ask(page, Verb::latency, wish);
    }
    if (options.zero) {
        Control wish;
        wish.zero_fds = options.fds;
        ok &= ask(page, Verb::zero, wish);
    }
    return ok;
}

bool configures(const Options& options) {
    return options.zero || !options.log_level.empty() || options.log_details != kKeep ||
           !options.latency.empty();
}

enum class Once { explain, json, prometheus, netstat, memberships, listings };

std::vector<Process> processes_of(const Options& options) {
    std::vector<Process> processes =
        look_at_all(options.which, !options.which.first, options.lists);
    if (!options.sockets.empty())
        for (Process& p : processes) p = only(std::move(p), options.fds);
    return processes;
}

int show_once(const Options& options, Once what) {
    const std::vector<Process> processes = processes_of(options);
    if (what == Once::netstat) print(netstat_header());
    for (const Process& p : processes) {
        if (what == Once::explain) print(explain(p));
        if (what == Once::netstat) print(netstat_rows(p));
        if (what == Once::memberships) print(memberships(p));
        if (what == Once::listings)
            for (const std::string& name : options.dumps)
                print((processes.size() > 1 ? fmt::format("{} (pid {})\n", p.page.program, p.pid)
                                            : "") +
                      listing(p, kListings.at(name)));
    }
    if (what == Once::json) print(to_json(processes));
    if (what == Once::prometheus) print(to_prometheus(processes));
    if (what == Once::netstat || !processes.empty()) return 0;
    say(fmt::format("no preloaded process in {}", options.which.directory));
    return 1;
}

// Views 1 to 3, again and again.
int show_cycles(const Options& options, const CLI::App& app) {
    std::vector<PageFile> pages = select_pages(options.which, false);
    if (pages.empty()) {
        say(fmt::format("no preloaded process found in {}", options.which.directory));
        std::fputs(app.help().c_str(), stderr);
        return 1;
    }
    PageFile& page = pages.front();
    if (configures(options) && !configure(options, page)) return 1;
    const bool rates = options.details == 2, clear = options.view == 3 && isatty(STDOUT_FILENO);
    unsigned lines = kHeaderEvery;
    Process before;
    for (unsigned cycle = 0; options.cycles == 0 || cycle < options.cycles; cycle++) {
        if (cycle) std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_s));
        std::string why;
        Process now;
        if (options.view == 3) ask_lists(page, options.lists);
        if (!look(page, now, &why)) {
            say(why);
            return 0;
        }
        if (!options.sockets.empty()) now = only(std::move(now), options.fds);
        if (cycle == 0)
            print(fmt::format("vmastat: stats for application: {} with pid: {}\n", now.page.program,
                              page.pid()));
        const double seconds =
            cycle ? double(now.page.header.published_ns - before.page.header.published_ns) / 1e9
                  : 0;
        const Process shown = rates ? since(now, cycle ? before : now) : since_zero(now);
        // Polling time is told of the last interval in either case.
        Process waits = cycle ? since(now, before) : now;
        Process out = shown;
        for (size_t i = 0; i < out.page.waits.size() && i < waits.page.waits.size(); i++)
            out.page.waits[i].numbers.polling_ns = waits.page.waits[i].numbers.polling_ns;
        if (options.view == 3) {
            print((clear ? "\033[2J\033[H" : "") + full_blocks(out, seconds));
        } else {
            const std::string rows = basic_rows(out, options.view == 2, seconds);
            if (lines >= kHeaderEvery) {
                print(basic_header(rates, options.view == 2));
                lines = 0;
            }
            print(rows);
            lines += unsigned(std::count(rows.begin(), rows.end(), '\n'));
        }
        before = std::move(now);
    }
    return 0;
}

int serve(const Options& options) {
    const int error = serve_metrics(
        uint16_t(options.listen_port), [&] { return to_prometheus(processes_of(options)); },
        [](uint16_t port) { print(fmt::format("http://127.0.0.1:{}/metrics\n", port)); });
    say(fmt::format("cannot listen on 127.0.0.1:{}: {}", options.listen_port,
                    std::strerror(error)));
    return 1;
}

// Options that are more than their own value says. False: said.
bool settle(Options& options) {
    if (!options.sockets.empty() && !parse_ranges(options.sockets, options.fds)) {
        say(fmt::format("--sockets: '{}' is no list of descriptors like 3-7,9 (at most {} pieces)",
                        options.sockets, kFdRanges));
        return false;
    }
    if (options.sockets.empty()) options.fds = everything();
    for (const std::string& text :
         {options.log_level, options.fd_dump.size() > 1 ? options.fd_dump[1] : std::string()})
        if (!text.empty() && !log_level_from_text(text)) {
            say(fmt::format("'{}' is no log level", text));
            return false;
        }
    if (!options.fd_dump.empty() &&
        options.fd_dump[0].find_first_not_of("0123456789") != std::string::npos) {
        say(fmt::format("--fd_dump: '{}' is no descriptor", options.fd_dump[0]));
        return false;
    }
    if (options.reload && options.which.pid == 0 && options.which.name.empty()) {
        say("--reload needs -p or -n");
        return false;
    }
    for (const std::string& name : options.dumps) options.lists |= list_bit(kListings.at(name));
    if (options.json)
        options.lists |= list_bit(SegmentKind::options) | list_bit(SegmentKind::rules);
    return true;
}

void add_options(CLI::App& app, Options& options) {
    app.set_help_flag("-h,-?,--help", "print this and exit");
    app.add_flag("-V,--version", options.version, "print the version and exit");
    auto* pid = app.add_option("-p,--pid", options.which.pid, "show the process with this id")
                    ->check(CLI::PositiveNumber);
    auto* name = app.add_option("-n,--name", options.which.name,
                                "show the first process whose executable has this base name");
    app.add_flag("-f,--find_pid", options.which.first,
                 "show the first process found (default of views 1 to 3)")
        ->excludes(pid)
        ->excludes(name);
    pid->excludes(name);
    app.add_option("-k,--directory", options.which.directory,
                   "where the pages are (VMA_STATS_SHMEM_DIR)")
        ->capture_default_str();
    app.add_flag("-F,--forbid_clean", options.forbid_clean,
                 "keep pages of processes that have ended");
    app.add_option("-i,--interval", options.interval_s,
                   "seconds between two looks, 0.1 for instance")
        ->check(CLI::Range(0.0, 86400.0))
        ->capture_default_str();
    app.add_option("-c,--cycles", options.cycles, "looks, 0: without end")->capture_default_str();
    app.add_option("-v,--view", options.view,
                   "1: counters of each socket; 2: with its queue; 3: everything; 4: multicast "
                   "groups; 5: like netstat, all processes. 4 and 5: once")
        ->check(CLI::IsMember({1, 2, 3, 4, 5}))
        ->capture_default_str();
    app.add_option("-d,--details", options.details, "1: totals; 2: since the look before")
        ->check(CLI::IsMember({1, 2}))
        ->capture_default_str();
    app.add_option("-s,--sockets", options.sockets, "only these descriptors: 3-7,9");
    app.add_flag("-z,--zero", options.zero,
                 "the views count from now on (of the descriptors of -s, or all)");
    app.add_option("-l,--log_level", options.log_level,
                   "log level of the process from now on: a name or digit of VMA_TRACELEVEL");
    app.add_option("-D,--details_level", options.log_details, "log details of the process, 0 to 3")
        ->check(CLI::Range(0, 3));
    app.add_option("-S,--fd_dump", options.fd_dump,
                   "FD [LEVEL]: the process writes the state of descriptor FD (0: of all) into its "
                   "log")
        ->expected(1, 2);
    app.add_option("--dump", options.dumps,
                   "what the process knows: route, neigh, flows, options, rules; once")
        ->check(CLI::IsMember({"route", "neigh", "flows", "options", "rules"}))
        ->delimiter(',')
        ->allow_extra_args(false);
    app.add_option("--latency", options.latency,
                   "on or off: histograms of the times from arrival to read and from send call to "
                   "ring, of the descriptors of -s, or all")
        ->check(CLI::IsMember({"on", "off"}));
    app.add_flag("--reload", options.reload,
                 "has the process read its rules file (VMA_CONFIG_FILE) again");
    app.add_flag("--json", options.json, "everything as JSON, once (docs/STATS.md)");
    auto* prometheus = app.add_flag("--prometheus", options.prometheus,
                                    "everything in Prometheus' text format, once");
    app.add_option("--listen", options.listen_port,
                   "with --prometheus: serve it at http://127.0.0.1:PORT/metrics; 0: any port")
        ->needs(prometheus)
        ->check(CLI::Range(0, 65535));
}

struct Commands {
    CLI::App *explain = nullptr, *doctor = nullptr, *top = nullptr, *record = nullptr,
             *report = nullptr;
    std::string recording = "vma_stats.jsonl", page;
    bool wait = false;
};

void add_commands(CLI::App& app, Commands& c) {
    c.explain = app.add_subcommand(
        "explain", "one line per socket: offloaded over which ring, or kernel and why");
    c.doctor = app.add_subcommand(
        "doctor", "what makes programs slower than they could be, and the command that mends it");
    c.top = app.add_subcommand("top", "rates, times and the recent past of each socket; q ends it");
    c.record = app.add_subcommand("record", "looks into a file, one each interval");
    c.record->add_option("-o,--output", c.recording, "the file")->capture_default_str();
    c.record->add_flag("--wait", c.wait, "begin when there is a process");
    c.report = app.add_subcommand("report", "a web page of such a file");
    c.report->add_option("page", c.page, "the page, HTML")->required();
    c.report->add_option("-r,--recording", c.recording, "the file")->capture_default_str();
    app.require_subcommand(0, 1);
    for (CLI::App* command : {c.explain, c.doctor, c.top, c.record, c.report}) {
        command->fallthrough();
        command->set_help_flag("-h,-?,--help", "print this and exit");
    }
}

int run(Options& options, const CLI::App& app, bool explaining) {
    if (!options.forbid_clean) remove_stale_pages(options.which.directory);
    if (options.reload) return for_page(options, reload);
    if (!options.fd_dump.empty())
        return for_page(options, [&](PageFile& page) { return dump_descriptor(options, page); });
    if (options.listen_port >= 0) return serve(options);
    const bool once = explaining || options.json || options.prometheus || !options.dumps.empty() ||
                      options.view >= 4;
    if (!once) return show_cycles(options, app);
    if (configures(options))
        if (const int status =
                for_page(options, [&](PageFile& page) { return configure(options, page); }))
            return status;
    return show_once(options, explaining               ? Once::explain
                              : options.json           ? Once::json
                              : options.prometheus     ? Once::prometheus
                              : !options.dumps.empty() ? Once::listings
                              : options.view == 4      ? Once::memberships
                                                       : Once::netstat);
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): without memory it ends
int main(int argc, char** argv) {
    Options options;
    CLI::App app("Statistics of processes that run with libvma.so preloaded", "vma_stats");
    add_options(app, options);
    Commands commands;
    add_commands(app, commands);
    bool good = true;
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        print(app.help());
        return 0;
    } catch (const CLI::ParseError& error) {
        say(error.what());
        good = false;
    }
    if (good && options.version) {
        print(fmt::format("vma_stats, page layout {}\n", kVersion));
        return 0;
    }
    if (!good || !settle(options)) {
        std::fputs(app.help().c_str(), stderr);
        return 1;
    }
    if (commands.report->parsed()) return run_report(commands.recording, commands.page);
    if (commands.record->parsed())
        return run_record(options.which, commands.recording, options.interval_s, options.cycles,
                          commands.wait);
    if (commands.top->parsed()) return run_top(options.which, options.interval_s, options.cycles);
    if (commands.doctor->parsed())
        return run_doctor(look_at_all(
            options.which, true, list_bit(SegmentKind::options) | list_bit(SegmentKind::rules)));
    return run(options, app, commands.explain->parsed());
}
