#include "engine/placement.h"

#include <errno.h>
#include <sys/random.h>

#include "base/arena.h"
#include "base/own_fd.h"
#include "dev/packet/packet_ring.h"
#include "engine/tcp_defaults.h"
#include "pkt/pool.h"

namespace vma {
namespace {

// VMA_RING_KIND, order of options.def.
enum RingKind : int { kAuto, kVerbs, kMlx5, kXdp, kPacket, kShm };

Reason reason_of(int error) {
    switch (error) {
        case EPERM:
        case EACCES:
            return Reason::capability;
        case ENOLINK:
            return Reason::broker_gone;
        case ENOMEM:
            return Reason::memory;
        case EINVAL:
        case ENODEV:
            return Reason::interface_unsupported;
        default:
            return Reason::ring_failed;
    }
}

// The memory of the shard: an arena whose memfd stays open so that it grows step by step.
Arena* make_arena(int* error) {
    auto* descriptor = new OwnFd;
    const auto arena = Arena::create(Arena::kDefaultReserve, descriptor);
    if (arena) return *arena;
    delete descriptor;
    *error = arena.error();
    return nullptr;
}

uint64_t random_secret() {
    uint64_t secret = 0;
    if (getrandom(&secret, sizeof secret, GRND_NONBLOCK) != sizeof secret)
        secret = 0x9e3779b97f4a7c15ull ^ uint64_t(size_t(&secret));
    return secret;
}

bool out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }
constexpr const char* kNoDescriptor = "no file descriptor left: raise the limit (ulimit -n)";

}  // namespace

Shard* open_shard_on(const Interface& interface, const Options& options, Reason* why,
                     std::string* text) {
    const int kind = options.ring_kind;
    if (kind != kAuto && kind != kPacket) {
        *why = Reason::ring_failed;
        *text =
            "VMA_RING_KIND asks for a ring kind that this version does not have: use auto or "
            "packet";
        return nullptr;
    }
    int error = 0;
    Arena* arena = make_arena(&error);
    if (arena == nullptr) {
        *why = Reason::memory;
        *text = out_of_descriptors(error)
                    ? kNoDescriptor
                    : "no memory for the shard (memfd_create or mmap failed, errno " +
                          std::to_string(error) + ")";
        return nullptr;
    }
    PoolLimits limits;
    limits.packets = options.rx_bufs;
    auto* pool = arena->make<PacketPool>(*arena, limits);
    PacketRingConfig config;
    config.ifindex = interface.index;
    config.mtu = interface.mtu;
    config.ring_bytes = options.packet_ring_bytes;
    config.pool = pool;
    const auto ring = open_packet_ring(config, text);
    if (!ring) {
        *why = reason_of(ring.error());
        if (out_of_descriptors(ring.error())) *text = kNoDescriptor;
        if (ring.error() == ENOMEM) *text += " (no memory left: raise the limit (ulimit -v))";
        Arena::unmap(arena);
        return nullptr;
    }
    Shard::Parts parts;
    parts.arena = arena;
    parts.pool = pool;
    parts.ring = *ring;
    parts.ifindex = interface.index;
    parts.mac = interface.mac;
    parts.ring_kind = "packet";
    parts.secret = random_secret();
    parts.secret2 = random_secret();
    Shard* shard = Shard::make(parts);
    if (shard != nullptr) shard->tcp().memory().set_budget(&tcp_budget(options));
    if (shard == nullptr) {
        delete *ring;
        Arena::unmap(arena);
        *why = Reason::memory;
        *text = "the shard arena is full";
    }
    return shard;
}

}  // namespace vma
