// vma_stats: shows the statistics pages of preloaded processes (src/stats/layout.h). Options as VMA's vma_stats, and the
// subcommand explain: for each socket who serves it, over which ring or for which reason not.
// Exit status: 0, also when the process ends meanwhile; 1 for a bad option or when there is no process to show.
#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "stats/reader.h"
#include "stats/views.h"

namespace {

using namespace vma::stats;
using std::chrono::milliseconds;

// An idle process turns four times a second; one that is stopped never does.
constexpr milliseconds kAnswerWithin{1000};
constexpr milliseconds kLookEvery{2};
constexpr milliseconds kReloadWithin{3000};
constexpr unsigned kHeaderEvery = 24;  // lines of view 1

struct Options {
    uint32_t pid = 0;
    std::string name;
    std::string directory = "/tmp/";
    bool first = false, forbid_clean = false, json = false, version = false, reload = false;
    unsigned interval_s = 1, cycles = 0;
    int view = 1;
};

void say(const std::string& text) { std::fputs(("vma_stats: " + text + "\n").c_str(), stderr); }
void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}

// Asks for fresh counters and waits for them. What the user must know about their age goes to standard error.
void refresh(PageFile& page) {
    const int error = page.request();
    if (error == EROFS) {
        say(fmt::format(
            "no write access to the page of process {}: counters are those of its last publication",
            page.pid()));
        return;
    }
    if (error != 0) return;  // EAGAIN: nothing to count yet
    const auto end = std::chrono::steady_clock::now() + kAnswerWithin;
    while (!page.answered()) {
        if (!page.process_lives()) return;
        if (std::chrono::steady_clock::now() >= end) {
            say(fmt::format(
                "process {} does not answer (stopped?): counters are those of its last publication",
                page.pid()));
            return;
        }
        std::this_thread::sleep_for(kLookEvery);
    }
}

// Has a process read its rules file again, and tells how that went. 0: the rules are in force, or will be.
int reload(PageFile& page) {
    const int error = page.request_reload();
    if (error == EAGAIN) {
        print(
            fmt::format("process {}: will read its rules again at its next socket\n", page.pid()));
        return 0;
    }
    if (error != 0) {
        say(fmt::format("process {} cannot be asked: {}", page.pid(),
                        error == EROFS ? "no write access to its page" : std::strerror(error)));
        return 1;
    }
    Header header;
    const auto end = std::chrono::steady_clock::now() + kReloadWithin;
    while (!page.reload_answered(header)) {
        if (!page.process_lives() || std::chrono::steady_clock::now() >= end) {
            say(fmt::format("process {} does not answer ({})", page.pid(),
                            page.process_lives() ? "stopped?" : "it has ended"));
            return 1;
        }
        std::this_thread::sleep_for(kLookEvery);
    }
    const std::string text =
        fmt::format("process {}: {} (generation {}, {} rules in force)\n", page.pid(),
                    printable(header.rules_text, sizeof header.rules_text), header.rules_generation,
                    header.rules_count);
    if (!header.rules_ok) {
        std::fputs(text.c_str(), stderr);
        return 1;
    }
    print(text);
    return 0;
}

bool look(PageFile& page, Process& out, std::string* why) {
    refresh(page);
    Snapshot snapshot;
    if (!page.read(snapshot, why)) return false;
    if (!page.process_lives()) {
        *why = fmt::format("process {} has ended", page.pid());
        return false;
    }
    out = make_process(page.pid(), std::move(snapshot), read_process_sockets(page.pid()));
    return true;
}

// Pages that the options select, in ascending order of pid; `all`: every live one when none is named. What cannot be shown
// is said.
std::vector<PageFile> select(const Options& options, bool all) {
    std::vector<PageFile> out;
    std::string why;
    std::vector<uint32_t> pids;
    if (options.pid)
        pids = {options.pid};
    else
        pids = list_pages(options.directory, &why);
    if (!why.empty()) say(why);
    for (const uint32_t pid : pids) {
        if (!options.name.empty() && executable_name(pid) != options.name) continue;
        auto page = PageFile::open(options.directory, pid, &why);
        if (!page) {
            say(why);
            continue;
        }
        if (!page->process_lives()) continue;
        out.push_back(std::move(*page));
        if (!all || !options.name.empty()) break;
    }
    return out;
}

int show_once(const Options& options, bool explaining) {
    std::vector<Process> processes;
    for (PageFile& page : select(options, !options.first)) {
        std::string why;
        Process process;
        if (look(page, process, &why))
            processes.push_back(std::move(process));
        else
            say(why);
    }
    if (options.json) {
        print(to_json(processes));
    } else if (explaining) {
        for (const Process& process : processes) print(explain(process));
    } else {
        print(netstat_header());
        for (const Process& process : processes) print(netstat_rows(process));
        return 0;
    }
    if (processes.empty()) say(fmt::format("no preloaded process in {}", options.directory));
    return processes.empty() ? 1 : 0;
}

int show_basic(const Options& options, const CLI::App& app) {
    std::vector<PageFile> pages = select(options, false);
    if (pages.empty()) {
        say(fmt::format("no preloaded process found in {}", options.directory));
        std::fputs(app.help().c_str(), stderr);
        return 1;
    }
    PageFile& page = pages.front();
    unsigned lines = kHeaderEvery;
    for (unsigned cycle = 0; options.cycles == 0 || cycle < options.cycles; cycle++) {
        if (cycle) std::this_thread::sleep_for(std::chrono::seconds(options.interval_s));
        std::string why;
        Process process;
        if (!look(page, process, &why)) {
            say(why);
            return 0;
        }
        if (cycle == 0)
            print(fmt::format("vmastat: stats for application: {} with pid: {}\n",
                              process.page.program, page.pid()));
        const std::string rows = basic_rows(process);
        if (lines >= kHeaderEvery) {
            print(basic_header());
            lines = 0;
        }
        print(rows);
        lines += unsigned(std::count(rows.begin(), rows.end(), '\n'));
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("Statistics of processes that run with libvma.so preloaded", "vma_stats");
    app.set_help_flag("-h,-?,--help", "print this and exit");
    app.add_flag("-V,--version", options.version, "print the version and exit");
    auto* pid = app.add_option("-p,--pid", options.pid, "show the process with this id")
                    ->check(CLI::PositiveNumber);
    auto* name = app.add_option("-n,--name", options.name,
                                "show the first process whose executable has this base name");
    app.add_flag("-f,--find_pid", options.first, "show the first process found (default of view 1)")
        ->excludes(pid)
        ->excludes(name);
    pid->excludes(name);
    app.add_option("-k,--directory", options.directory, "where the pages are (VMA_STATS_SHMEM_DIR)")
        ->capture_default_str();
    app.add_flag("-F,--forbid_clean", options.forbid_clean,
                 "keep pages of processes that have ended");
    app.add_option("-i,--interval", options.interval_s, "seconds between two looks")
        ->capture_default_str();
    app.add_option("-c,--cycles", options.cycles, "looks, 0: without end")->capture_default_str();
    app.add_option("-v,--view", options.view,
                   "1: counters of each socket; 5: like netstat, all processes, once")
        ->check(CLI::IsMember({1, 5}))
        ->capture_default_str();
    auto* reloading = app.add_flag("--reload", options.reload,
                                   "has the process read its rules file (VMA_CONFIG_FILE) again");
    app.add_flag("--json", options.json, "everything as JSON, once");
    auto* explaining = app.add_subcommand(
        "explain", "one line per socket: offloaded over which ring, or kernel and why");
    explaining->fallthrough();
    explaining->set_help_flag("-h,-?,--help", "print this and exit");
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        print(app.help());
        return 0;
    } catch (const CLI::ParseError& error) {
        say(error.what());
        std::fputs(app.help().c_str(), stderr);
        return 1;
    }
    if (options.reload && options.pid == 0 && options.name.empty()) {
        say(reloading->get_name() + " needs -p or -n");
        std::fputs(app.help().c_str(), stderr);
        return 1;
    }
    if (options.version) {
        print(fmt::format("vma_stats, page layout {}\n", kVersion));
        return 0;
    }
    if (!options.forbid_clean) remove_stale_pages(options.directory);
    if (options.reload) {
        std::vector<PageFile> pages = select(options, true);
        int status = pages.empty() ? 1 : 0;
        if (pages.empty()) say(fmt::format("no preloaded process found in {}", options.directory));
        for (PageFile& page : pages) status |= reload(page);
        return status;
    }
    if (explaining->parsed() || options.json || options.view == 5)
        return show_once(options, explaining->parsed());
    return show_basic(options, app);
}
