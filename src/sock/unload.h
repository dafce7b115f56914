// The end of the library in a process that goes on: dlclose(3) by whoever has opened it.
#pragma once

namespace vma::sock {

// Every socket goes on in the kernel, the internal thread ends, descriptors and memory that the program could see are given up. The
// program's threads are in no call of the library and make none any more.
void unload();
// A thread that ends from now on has nothing of ours to give back (watch.cc).
void thread_sleeps_end();

}  // namespace vma::sock
