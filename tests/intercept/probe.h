// What the probe socket layer tells the tests: getsockopt(-1, SOL_SOCKET, 2800) answers a pointer to this.
#pragma once

#include <atomic>

struct ProbeState {
    int (*depth)();                  // depth of the calling thread, from outside any hook
    int (*own_fd)();                 // number of the library's own descriptor
    std::atomic<unsigned> asks{0};   // calls of the socket layer that return an Outcome
    std::atomic<int> stdio_fd{-1};   // last fd_enters_stdio
    std::atomic<int> passed_fd{-1};  // last hand_back with Reason::fd_passed
    std::atomic<int> dup_from{-1}, dup_to{-1};
    std::atomic<int> implicitly_closed{-1};
    std::atomic<unsigned> fork_prepares{0}, fork_parents{0}, fork_children{0};
    std::atomic<unsigned> execs{0}, setids{0}, own_changes{0}, keeps{0}, chroots{0}, filters{0},
        namespaces{0}, rings{0};
};
