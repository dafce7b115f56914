// VMA_HANDLE_SIGSEGV: where a program that crashes was.
#pragma once

namespace vma {

// From now on SIGSEGV prints a backtrace on standard error and then does what it always does. A handler that the program has
// installed stays, one that it installs later takes the place of this.
void print_backtrace_on_segfault();
// The handler is about to be unmapped.
void end_backtrace_on_segfault();

}  // namespace vma
