// Placement: which ring an interface gets, and the shard around it. The one table of design.md section 4.
#pragma once

#include <string>

#include "base/reason.h"
#include "config/options.h"
#include "engine/shard.h"
#include "stack/route.h"

namespace vma::shm {
class ShmRing;
}
namespace vma {
struct VerbsRingConfig;

// What the settings say of a verbs ring; interface and memory are the caller's to add.
VerbsRingConfig verbs_settings(const Options& options);

// May a ring of this process have the queues of a device? Looked at without opening one.
bool may_have_device_queues(const Options& options);

// Opens the best ring that interface and options allow, in the calling thread's namespace. Null on failure: *why is the
// reason code, *text one line for the user that names the call and what to do.
Shard* open_shard_on(const Interface& interface, unsigned lane, const Options& options, Reason* why,
                     std::string* text);

// The shard of all neighbour processes of one namespace; `ifindex` of its loopback device. *ring is the shard's.
Shard* open_shm_shard(int ifindex, const Options& options, shm::ShmRing** ring, Reason* why,
                      std::string* text);

// What is wrong with memory pages of that size, or "": arena, rings and statistics are laid out in pages of 4 KiB, which some
// kernels for arm64 have not.
std::string page_obstacle(size_t page);

}  // namespace vma
