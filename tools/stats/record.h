// `vma_stats record` and `vma_stats report`: a session as a file of JSON lines, and a web page made of it that needs nothing
// else: time series and histograms as inline SVG.
#pragma once

#include <string>

#include "stats/session.h"

namespace vma::stats {

// Appends a line per interval: {"time": seconds since the epoch, "look": what --json prints}. cycles 0: until an interrupt or
// until the last process has ended. `wait`: the first look is the first that sees a process. Exit status.
int run_record(const Selection& which, const std::string& file, double interval_s, unsigned cycles,
               bool wait);
// The web page of a recording. False and *why: not a recording, or with less than two looks.
bool make_report(const std::string& recording, std::string* html, std::string* why);
int run_report(const std::string& recording, const std::string& page);

}  // namespace vma::stats
