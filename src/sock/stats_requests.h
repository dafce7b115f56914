// What viewers ask for beyond counters (stats::Verb): log level, state of sockets into the log, listings, latency histograms.
#pragma once

#include "base/log.h"

namespace vma::sock {

// Internal thread, every turn: meets the requests that are open. A few loads when there is none.
void stats_requests();
// State of the socket or epoll set `fd` into the log at `level`, 0: of all. False: there is none.
bool dump_descriptor(int fd, LogLevel level);

}  // namespace vma::sock
