// Pages that a command works on: which ones, asking their processes and waiting for answers. What the user must know goes to
// standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "stats/reader.h"
#include "stats/views.h"

namespace vma::stats {

struct Selection {
    uint32_t pid = 0;
    std::string name;
    std::string directory = "/tmp/";
    bool first = false;
};

void say(const std::string& text);    // "vma_stats: ..." on standard error
void print(const std::string& text);  // standard output, at once

// Pages that `which` selects, ascending by pid; `all`: every live one when none is named. What cannot be shown is said.
std::vector<PageFile> select_pages(const Selection& which, bool all);

// Asks for `verb` and waits for the answer at most `within`. False, and said: no answer.
bool ask(PageFile& page, Verb verb, const Control& parameters = {},
         std::chrono::milliseconds within = std::chrono::milliseconds(3000));

// The listings in `lists` (list_bit) anew; without a word when they do not come.
void ask_lists(PageFile& page, uint32_t lists);
// Fresh counters of the page, joined with /proc. False: *why.
bool look(PageFile& page, Process& out, std::string* why);
// The same of every selected page; what cannot be read is said. `lists`: list_bit of listings to ask for.
std::vector<Process> look_at_all(const Selection& which, bool all, uint32_t lists);

}  // namespace vma::stats
