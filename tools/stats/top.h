// `vma_stats top`: rates, round trips, latencies and a line of the recent past for each socket and ring of all processes,
// redrawn each interval. On a terminal until q is pressed; else one table after the other, as text.
#pragma once

#include "stats/session.h"

namespace vma::stats {

// cycles 0: until q or an interrupt. Exit status.
int run_top(const Selection& which, double interval_s, unsigned cycles);

}  // namespace vma::stats
