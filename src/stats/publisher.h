// Publisher: this process's side of the statistics page (layout.h). The data path never comes here: its counters are
// ordinary memory, copied by the internal thread while a viewer asks (due), so a full disk or a slow file system under the
// page meets no send or receive call.
//
// The file is made at the first row, in a directory that others may write to: O_EXCL and O_NOFOLLOW, never through a link,
// never over a live process's file. Its blocks are reserved before they are written. Without a directory or when that
// fails (one warning) there is no page and every call is a cheap no-op. A page that somebody cuts short is made anew, with
// all that it had; at no moment can a cut end the program (page.h).
//
// Threads: every call from any thread; a spin lock, last in the lock order, guards the page. No malloc. A forked child
// leaves its parent's page alone and makes one of its own at its next row.
#pragma once

#include <atomic>
#include <string_view>

#include "base/drop.h"
#include "base/time.h"
#include "stats/layout.h"

namespace vma::stats {

inline constexpr Duration kPublishEvery = Duration::millis(100);
inline constexpr Duration kReaderActive = Duration::seconds(10);

// A place in the page. One made before a fork or a withdraw() is void and replaced at the next set.
struct RowHandle {
    uint32_t row = UINT32_MAX;
    uint32_t epoch = 0;
};

// Where the page goes; before the first row. directory "": no file. Too long a directory counts as none.
void configure(std::string_view directory, std::string_view program, std::string_view library);

// Writes who and where a socket is; `row` gets a place if it has none. `id.inode` and `id.cookie` 0 are asked of the
// kernel by id.fd when the place is made, and kept. Null: as they were. The fd decides whether Verb::zero means the socket.
void set_socket(RowHandle& row, const SocketIdentity& id, const SocketNumbers* numbers = nullptr,
                const TcpNumbers* tcp = nullptr);
void remove_socket(RowHandle& row);
// Row `index` of the rings; rings are never removed, a closed one has open 0. False: there is no page yet, or no room in it.
bool set_ring(unsigned index, const RingIdentity& id, const RingNumbers& numbers,
              const DropCounters& drops);
// A waiting place; `row` gets one if it has none and there is a page.
void set_wait(RowHandle& row, const WaitIdentity& id, const WaitNumbers& numbers);
void remove_wait(RowHandle& row);

// Rows of a listing, written anew from the first; what is left of the one before goes with the object. One at a time.
template <class Row>
class Listing {
  public:
    Listing();
    ~Listing();
    Listing(const Listing&) = delete;
    Listing& operator=(const Listing&) = delete;
    void add(const Row& row);  // its seq and in_use do not matter

  private:
    uint32_t next_ = 0;
};

// From now on somebody calls due() again and again: a viewer may wait for an answer. Until a fork.
void will_publish();
// Looks at the words of viewers, for the four that follow, and at the length of the file. Two system calls.
void look();
// True when a viewer wants counters now, or zeroes; the caller then publishes all and calls published(). Internal thread
// only.
bool due(Instant now);
void published(Instant now);

// What a viewer asks for beyond counters. The number is 0 when nobody does; else the caller does it and calls answer().
uint64_t asked(Verb verb);
void answer(Verb verb, uint64_t number);
// The viewers' words, not to be trusted.
Control control();

// Makes a page anew that somebody has cut short. True: one was, since this was asked last.
bool mend();
void set_log_state(int level, int details);
void set_descriptors(uint32_t limit);  // Header::descriptors
void set_capture_error(int error);

// How reading the rules file again went.
struct RulesState {
    uint32_t generation = 0, count = 0;
    bool ok = true;
    std::string_view text;  // cut to what the page holds
};
// Shows `state`; asked(Verb::reload) is answered besides.
void set_rules(const RulesState& state);

// Removes the file: the process exits or becomes another program. `for_good`: no page is made any more.
void withdraw(bool for_good);
void forget_in_child();  // first act of a forked child

// The directory of the page with a slash at its end, and a NUL; "" when there is none. How long.
size_t page_directory(char* out, size_t room);
// For tests: path of the file, "" when there is none.
std::string_view page_path();

}  // namespace vma::stats
