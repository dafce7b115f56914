#include "stats/session.h"

#include <errno.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <thread>

namespace vma::stats {
namespace {

using std::chrono::milliseconds;

// An idle process turns four times a second; one that is stopped never does.
constexpr milliseconds kAnswerWithin{1000};
constexpr milliseconds kLookEvery{2};

// True when the answer came. Ends early when the process does.
bool wait_for(PageFile& page, Verb verb, milliseconds within) {
    const auto end = std::chrono::steady_clock::now() + within;
    while (!page.answered(verb)) {
        if (!page.process_lives() || std::chrono::steady_clock::now() >= end) return false;
        std::this_thread::sleep_for(kLookEvery);
    }
    return true;
}

// Asks for fresh counters and waits for them.
void refresh(PageFile& page) {
    const int error = page.ask(Verb::counters);
    if (error == EROFS) {
        say(fmt::format(
            "no write access to the page of process {}: counters are those of its last publication",
            page.pid()));
        return;
    }
    if (error != 0) return;  // EAGAIN: nothing to count yet
    if (!wait_for(page, Verb::counters, kAnswerWithin) && page.process_lives())
        say(fmt::format(
            "process {} does not answer (stopped?): counters are those of its last publication",
            page.pid()));
}

}  // namespace

void say(const std::string& text) { std::fputs(("vma_stats: " + text + "\n").c_str(), stderr); }
void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}

std::vector<PageFile> select_pages(const Selection& which, bool all) {
    std::vector<PageFile> out;
    std::string why;
    std::vector<uint32_t> pids;
    if (which.pid)
        pids = {which.pid};
    else
        pids = list_pages(which.directory, &why);
    if (!why.empty()) say(why);
    for (const uint32_t pid : pids) {
        if (!which.name.empty() && executable_name(pid) != which.name) continue;
        auto page = PageFile::open(which.directory, pid, &why);
        if (!page) {
            say(why);
            continue;
        }
        if (!page->process_lives()) continue;
        out.push_back(std::move(*page));
        if (!all || !which.name.empty()) break;
    }
    return out;
}

bool ask(PageFile& page, Verb verb, const Control& parameters, milliseconds within) {
    if (const int error = page.ask(verb, parameters)) {
        say(error == EAGAIN
                ? fmt::format("process {} has no offloaded socket yet: asked, not answered",
                              page.pid())
                : fmt::format(
                      "process {} cannot be asked: {}", page.pid(),
                      error == EROFS ? "no write access to its page" : std::strerror(error)));
        return false;
    }
    if (wait_for(page, verb, within)) return true;
    say(fmt::format("process {} does not answer ({})", page.pid(),
                    page.process_lives() ? "stopped?" : "it has ended"));
    return false;
}

void ask_lists(PageFile& page, uint32_t lists) {
    Control wish;
    wish.list_kinds = lists;
    if (lists && page.ask(Verb::list, wish) == 0) wait_for(page, Verb::list, kAnswerWithin);
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

std::vector<Process> look_at_all(const Selection& which, bool all, uint32_t lists) {
    std::vector<Process> processes;
    for (PageFile& page : select_pages(which, all)) {
        ask_lists(page, lists);
        std::string why;
        Process process;
        if (look(page, process, &why))
            processes.push_back(std::move(process));
        else
            say(why);
    }
    return processes;
}

}  // namespace vma::stats
