// Threads whose new sockets are offloaded, or not, whatever VMA_OFFLOADED_SOCKETS says (thread_offload of the extra API).
#pragma once

#include <pthread.h>

namespace vma::sock {

// 0 or an errno value. ENOMEM: kMostThreads have an answer of their own already. The answer stays when the thread ends, and
// holds for the next one that gets its id, until it is asked for anew.
int set_thread_offload(pthread_t thread, bool offload);
inline constexpr unsigned kMostThreads = 1024;

// For a socket that the calling thread has just made.
bool thread_offloads(bool otherwise);

void thread_offload_forget_in_child();

}  // namespace vma::sock
