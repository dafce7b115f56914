// Waiting for a thread of the library's own to be gone, which is no point of cancellation here.
#pragma once

#include <pthread.h>

namespace vma {

inline void join(pthread_t thread) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_join(thread, nullptr);
    pthread_setcancelstate(before, nullptr);
}

}  // namespace vma
