// Reader: the viewer's side of the statistics page. It takes copies with pread(2), never a mapping, so a file that is cut
// short meanwhile is a message and no SIGBUS; every size and offset is checked before it is used, and text is made
// printable. What cannot be read is told in one line for the user. Not used inside libvma.so; std containers are fine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stats/layout.h"

namespace vma::stats {

// A consistent copy of the rows in use. index: number of the row, as SocketIdentity::rings counts rings.
struct Snapshot {
    Header header;
    std::string program;  // printable
    std::vector<SocketRow> sockets;
    std::vector<RingRow> rings;  // by index; in_use 0 where there is none
    std::vector<WaitRow> waits;
    // Listings: as they were when a viewer last asked for them.
    std::vector<LatencyRow> latencies;
    std::vector<OptionRow> options;
    std::vector<RouteRow> routes;
    std::vector<NeighborRow> neighbors;
    std::vector<FlowRow> flows;
    std::vector<MembershipRow> memberships;
    std::vector<RuleRow> rules;
};

class PageFile {
  public:
    // The page of process `pid` in `directory`. Empty and *why: no such file, a link or not a regular file, not owned by
    // who runs the process, cut short, wrong magic or version.
    static std::optional<PageFile> open(const std::string& directory, uint32_t pid,
                                        std::string* why);
    PageFile(PageFile&& other) noexcept;
    PageFile& operator=(PageFile&&) = delete;
    ~PageFile();

    // Copies the page. False and *why: cut short, offsets that lead nowhere, still in making, process ended.
    bool read(Snapshot& out, std::string* why) const;
    // Asks the process for `verb`, with those parts of `parameters` that it looks at. 0: answered() will tell when it is done;
    // EROFS: opened read-only (another user's process), what the page has is that of the last publication; EAGAIN: this
    // process has no internal thread yet, it answers once it has.
    int ask(Verb verb, const Control& parameters = {});
    // True once the last request for it was met.
    bool answered(Verb verb) const;
    // The header as it is now; false: it cannot be read any more.
    bool header(Header& out) const;
    // The process is there and is the one that made the page.
    bool process_lives() const;
    uint32_t pid() const { return pid_; }

  private:
    PageFile() = default;
    bool read_header(Header& out, std::string* why) const;
    int fd_ = -1;
    uint32_t pid_ = 0;
    bool writable_ = false;
    uint64_t start_ticks_ = 0, pid_namespace_ = 0;
    uint64_t asked_[kVerbs] = {};
    std::string name_;  // for messages
};

// pids of the pages in `directory`, ascending; no page is opened. *why when the directory cannot be read.
std::vector<uint32_t> list_pages(const std::string& directory, std::string* why);
// Removes pages whose process has ended, also those that it had only begun; only files that are pages, of processes of this pid
// namespace. How many.
unsigned remove_stale_pages(const std::string& directory);

// Control characters and bytes beyond ASCII become '?': a page must not drive the terminal.
std::string printable(const char* text, size_t room);

}  // namespace vma::stats
