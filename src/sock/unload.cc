#include "sock/unload.h"

#include "base/arena.h"
#include "base/close_aside.h"
#include "base/own_fd.h"
#include "engine/internal_thread.h"
#include "engine/runtime.h"
#include "engine/segfault.h"
#include "sock/api.h"

namespace vma::sock {

void unload() {
    (void)release();
    exit_prepare();
    InternalThread::wait_for_end();
    end_backtrace_on_segfault();
    thread_sleeps_end();
    close_aside_end();
    for (Shard* shard : Runtime::shards()) Arena::unmap(const_cast<Arena*>(&shard->arena()));
    // As in a child: nobody uses them any more.
    own_fds_close_in_child();
}

}  // namespace vma::sock
