// What the process-life hooks share.
#pragma once

namespace vma::hook {

void child_begins();             // first act of every forked child that may go on without exec
void dispositions_after_fork();  // signals.cc: another thread of the parent may have held the lock

}  // namespace vma::hook
