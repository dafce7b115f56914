// The library's side of the broker: starts it, keeps the door open across fork, has one session per process, and asks. What
// is not there (switched off, no executable, no capability when it could have been started, killed) makes every call fail
// quietly: without a broker everything else works as it does.
//
// Threads: any. Requests are serialised; each waits for its answer, kAnswerMs at most. Nothing here is called on a data path.
#pragma once

#include <span>

#include "base/result.h"
#include "broker/dispatch.h"
#include "broker/protocol.h"
#include "repair/repair.h"

namespace vma::broker {

struct ClientConfig {
    bool enabled = true;
    const char* path = "";  // of the executable, "": beside the library. Kept by pointer
    uint32_t layout = 0;    // layout_identity()
};
inline constexpr int kAnswerMs = 3000;

// Once, early; cheap.
void configure(const ClientConfig& config);
// Starts a broker if there is none yet (not even an inherited one) and the process has CAP_NET_ADMIN of the host; one that does not
// have it asks that of the host (vmad --listen) to serve it. True: there is a door.
bool start();
// Is there a broker to ask? Makes the session of this process if needed. Never starts one.
bool reachable();

// A ring of this process whose flows a broker writes; the doorbell shows that it is ours.
struct OwnRing {
    ShowRing facts;
    int doorbell = -1;
};
// Has the broker that writes this process's flows ended? Then one of the host may do it from now on: that which was started
// again, or another. Looks at the session: one system call.
bool bereft();
// Is there a session, whose other end would notice if this process were killed? As there.
bool is_watched();
// Asks the broker of the host to go on where the other ended: with these rings, and with the ports of these listeners; there may be
// no ring, if all that the other did was to introduce neighbours. Nobody is
// served in between. ENOENT, ECONNREFUSED: it is not there yet.
Status come_back(std::span<const OwnRing> rings, std::span<const int> listeners);

// As repair.h, done by the broker. EPERM: no broker. EACCES: the tuple is not ours to restore.
Status restore(int fd, const tcp::Snapshot& snapshot, const RepairQueues& queues,
               RepairOptions& saved);
void cancel(int fd, const RepairOptions& saved);
Status finish(int fd, const tcp::Snapshot& snapshot, const RepairQueues& queues,
              const RepairOptions& saved);
Status checkpoint(int fd, RepairImage& image, ByteSpan room);
void resume(int fd, const RepairImage& image);
Status release(int fd, const RepairImage& image);

// As their ops; ENOLINK: no broker. EPERM from open_ring: there never was one.
Status open_ring(const OpenRing& request, OpenedRing& out);
Status show_ring(const ShowRing& ring, int doorbell);
Status steer(const Steer& flow, int twin);
void unsteer(const Steer& flow);

// As their ops; EPERM: no broker of the host.
Status share(int link);
Status publish(const Endpoint& local);

// ok(): from now on the arena's connections are rescued if the process is killed.
Status watch(const Watch& watch, int arena_memfd);

// One-way messages; lost when there is no session.
// Twins that a child will share, any number. How many the broker has taken.
size_t hold(std::span<const Held> items, std::span<const int> twins);
void drop(const Held& item);
// Waits for the answer: until then the port has one holder more, and a close of `fd` does not free it.
void prove(int fd);
void drop_privileges();
void leaving(bool leaves);

// fork. In the child: before own descriptors are closed (returns what survives), and after.
int keep_door_in_child();
void forget_in_child(int kept_door);
// The library lets go of everything (vma_exit).
void close();

}  // namespace vma::broker
