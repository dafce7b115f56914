// Connections that go by shared memory (tcp_cross.cc), for the process as a whole.
#pragma once

#include "base/reason.h"
#include "base/time.h"
#include "engine/shard.h"
#include "engine/shm_peers.h"

namespace vma::sock {

class TcpSocket;

constexpr Duration kPatience = Duration::seconds(1);  // with a neighbour that says nothing
// Bytes that a program has not read, on their way into the ring or out of it.
constexpr size_t kMostUnread = 32u << 20;

// Why there is no ring, where a connection to somebody of this host needs none.
bool only_no_ring(Reason why);

void cross_start();
void cross_tick();  // internal thread, every turn
void cross_forget_in_child();
// An orphan in the shm ring becomes the kernel's, whose socket for it is `fd`. As move_to_kernel(), without the lease.
bool orphan_leaves_ring(Shard& shard, TcpConnection& c, int fd, Reason why);

// The other end of an orphan has left the ring. False: there is no such orphan.
bool orphan_asked_back(ShmPeerId from, const ShmMessage& m, int memory);
// The socket that the internal thread is just moving out, and whose control lock it holds; or null.
const TcpSocket* leaving_here();
// The kernel's connection ends by a reset.
void reset_twin(int fd);

}  // namespace vma::sock
