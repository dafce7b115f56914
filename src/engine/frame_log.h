// A line of the log for each frame that a ring received (level finer, with the reason if the stack drops it: fine) or took.
// Only in libvma-debug.so, which compiles frame_log.cc with every level; elsewhere these do nothing, and are called by nobody but
// vma_capture's way through the shard. The lines go by the level of the log alone: whoever captures sees none.
#pragma once

#include "base/bytes.h"
#include "base/drop.h"

namespace vma {

// After the level of the log has changed.
void frame_log_level_changed();

// `head` begins with the headers; `bytes` is the length of the whole.
void log_frame_in(int ifindex, ByteView head, uint32_t bytes, DropReason drop);
void log_frame_out(int ifindex, ByteView head, uint32_t bytes);

}  // namespace vma
