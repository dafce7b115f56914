// Frames are looked at one by one when vma_capture wants them (stats/capture.h) or when the log has a line for each.
#pragma once

namespace vma::stats {

// capturing() is true from now on, also without a viewer; or only with one.
void watch_frames(bool watch);

}  // namespace vma::stats
