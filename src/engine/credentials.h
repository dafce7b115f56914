// Credentials belong to threads in Linux. libc changes those of every thread at once; capset(), prctl() and system calls made by
// number change one. A program of one thread that gives its privileges up in that way has given them all up, as far as it
// knows: then the internal thread must not be left with them (credentials(7), capabilities(7), nptl(7)).
//
// A program with threads of its own is left alone: there it is a thread's own affair (servers that act for a user).
//
// Threads: any, but not the internal one. Each waits for the internal thread, two seconds at most.
#pragma once

namespace vma {

// The calling thread has changed its ids or capabilities by itself. When the internal thread still may what this one never may
// again (permitted capabilities), it becomes as this one is: groups, ids, capabilities. A change that can be taken back, such
// as that of the effective user alone, is not followed.
void follow_credentials();
// The calling thread has set PR_SET_KEEPCAPS to this. What libc does next to all threads must have the same effect on ours:
// it ends the program when one of them may not go on as the others do.
void follow_keep_capabilities(bool keep);

// For calls that the kernel allows to a process of one thread only (unshare(2), CLONE_NEWUSER): the internal thread ends, if it
// is the only one besides the caller. True: InternalThread::start() brings it back, and has to be called.
bool suspend_internal_thread();

}  // namespace vma
