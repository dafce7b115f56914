// What publisher.cc and publisher_requests.cc share: the page with its tables, how it comes and goes, its lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/process.h"
#include "base/spin_lock.h"
#include "base/time.h"
#include "stats/page.h"
#include "stats/publisher.h"
#include "stats/table.h"

namespace vma::stats {

struct PublisherState {
    SpinLock lock;
    char path[4096 + 32] = {};  // directory and prefix, then the whole name
    size_t directory_length = 0;
    char program[sizeof Header::program] = {};
    char library[sizeof Header::library] = {};
    bool refused = false;  // no page for this process: said once
    Page page;
    uint32_t pid = 0;    // whose page it is
    uint32_t epoch = 1;  // of the handles that are good
    uint32_t publishing = 0;
    uint32_t descriptors = 0;
    Table sockets{SegmentKind::sockets, sizeof(SocketRow), 64, true};
    Table rings{SegmentKind::rings, sizeof(RingRow), 8, false};
    Table waits{SegmentKind::waits, sizeof(WaitRow), 32, true};
    Table latencies{SegmentKind::latencies, sizeof(LatencyRow), 8, false};
    Table options{SegmentKind::options, sizeof(OptionRow), 64, false};
    Table routes{SegmentKind::routes, sizeof(RouteRow), 64, false};
    Table neighbors{SegmentKind::neighbors, sizeof(NeighborRow), 64, false};
    Table flows{SegmentKind::flows, sizeof(FlowRow), 64, false};
    Table memberships{SegmentKind::memberships, sizeof(MembershipRow), 64, false};
    Table rules{SegmentKind::rules, sizeof(RuleRow), 64, false};
    std::array<Table*, 10> tables{&sockets, &rings,     &waits, &latencies,   &options,
                                  &routes,  &neighbors, &flows, &memberships, &rules};
    Control wishes;             // of viewers, as of the last look()
    uint64_t met[kVerbs] = {};  // requests
    uint64_t zeroing = 0;       // the request for zeroes that this publication meets, 0: none
    FdRanges zero_fds;
    Instant reader_until, last_published;
    bool mended = false;  // mend() has not told yet
};

// Never destroyed: threads may still be in calls while exit handlers run.
union ForEver {
    PublisherState state{};
    ~ForEver() {}
};
extern constinit ForEver g_publisher;
inline PublisherState& publisher_state() { return g_publisher.state; }

bool make_page(PublisherState& s, int* error);
// The page, made if need be; its file again if somebody has cut it short. Lock held. False: none; *error is set when this call
// found out why.
inline bool have_page(PublisherState& s, int* error) {
    return s.page.shown() || make_page(s, error);
}
void say_why_there_is_no_page(int error);  // not under the lock
void drop_page(PublisherState& s);         // descriptors and memory; a file stays

// Everything of the page, locked. A fork that no hook has seen is noticed: the page is the parent's, and its lock may be held
// by a thread that is not here.
class LockedPage {
  public:
    PublisherState& state;

  private:
    static PublisherState& settled() {
        PublisherState& s = publisher_state();
        if (s.page.exists() && s.pid != uint32_t(self_identity() >> 32)) [[unlikely]]
            forget_in_child();
        return s;
    }
    SpinGuard guard_;

  public:
    LockedPage() : state(settled()), guard_(state.lock) {}
};

template <class T>
bool same(const T& a, const T& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
}

inline void copy_text(char* out, size_t room, std::string_view text) {
    const size_t n = std::min(text.size(), room - 1);
    std::memcpy(out, text.data(), n);
    std::memset(out + n, 0, room - n);
}

}  // namespace vma::stats
