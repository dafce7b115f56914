// poll, ppoll, select, pselect over sockets of ours and kernel descriptors in one set.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/select.h>
#include <time.h>

#include "sock/api.h"

namespace vma::sock {

Outcome poll_mixed(pollfd* fds, nfds_t n, const timespec* timeout, const sigset_t* mask);
Outcome select_mixed(int nfds, fd_set* read, fd_set* write, fd_set* except, timespec* timeout,
                     const sigset_t* mask);

void poll_publish_counts();  // for viewers; internal thread

}  // namespace vma::sock
