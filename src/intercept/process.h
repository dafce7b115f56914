// What the process-life hooks share.
#pragma once

namespace vma::hook {

// A child made by clone(CLONE_VM) with descriptors of its own: what it closes and duplicates is not this process's, although
// the memory is. Its hooks leave our state alone.
bool on_borrowed_memory();
void child_begins();             // first act of every forked child that may go on without exec
void dispositions_after_fork();  // signals.cc: another thread of the parent may have held the lock
void dispositions_end();  // signals.cc: the program's handlers are called by the kernel again

}  // namespace vma::hook
