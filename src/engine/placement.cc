#include "engine/placement.h"

#include <errno.h>
#include <sys/auxv.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>

#include "base/arena.h"
#include "base/log.h"
#include "base/own_fd.h"
#include "dev/packet/packet_ring.h"
#include "dev/shm/shm_ring.h"
#include "dev/verbs/port.h"
#include "dev/verbs/verbs_ring.h"
#include "dev/xdp/xdp_ring.h"
#include "engine/device_clock.h"
#include "engine/driver_environment.h"
#include "engine/tcp_defaults.h"
#include "engine/user_memory.h"
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
        case EDQUOT:
            return Reason::broker_denied;
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

// The memory of a shard. arena null: *why and *text tell.
struct Memory {
    Arena* arena = nullptr;
    PacketPool* pool = nullptr;
};

Memory make_memory(const Options& options, Reason* why, std::string* text) {
    int error = 0;
    Memory m;
    *text = page_obstacle(getauxval(AT_PAGESZ));
    if (!text->empty()) {
        *why = Reason::ring_failed;
        return m;
    }
    m.arena = make_arena(&error);
    if (m.arena == nullptr) {
        *why = Reason::memory;
        *text = out_of_descriptors(error)
                    ? kNoDescriptor
                    : "no memory for the shard (memfd_create or mmap failed, errno " +
                          std::to_string(error) + ")";
        return m;
    }
    if (options.is_set(Opt::mem_alloc_type))
        m.arena->prefer_huge_pages(options.mem_alloc_type >= 2);
    PoolLimits limits;
    limits.packets = options.rx_bufs;
    m.pool = m.arena->make<PacketPool>(*m.arena, limits);
    return m;
}

// mlx5 or verbs where the interface is the port of an RDMA device, else the packet ring.
Result<Ring*> open_ring(const Interface& interface, unsigned lane, const Options& options,
                        const Memory& memory, const char** kind, std::string* text) {
    if (may_have_device_queues(options)) {
        static std::once_flag once;
        std::call_once(once, [&] { set_driver_environment(options); });
        VerbsRingConfig config = verbs_settings(options);
        config.ifindex = interface.index;
        std::memcpy(config.mac.data(), interface.mac.bytes.data(), config.mac.size());
        config.mtu = interface.mtu;
        const UserMemoryWish wish = ring_memory_wish();
        config.receive_memory = wish.receive;
        config.send_memory = wish.send;
        config.arena = memory.arena;
        config.pool = memory.pool;
        // The queues of an mlx5 device are driven in memory, unless told otherwise.
        for (const bool mlx5 : {true, false}) {
            const int wanted = mlx5 ? kMlx5 : kVerbs;
            if (options.ring_kind != kAuto && options.ring_kind != wanted) continue;
            config.mlx5 = mlx5;
            *kind = mlx5 ? "mlx5" : "verbs";
            auto ring = open_verbs_ring(config, text);
            if (ring || options.ring_kind == wanted) return ring;
            vma_log(debug, "engine", "interface {}: no {} ring: {}", interface.name, *kind, *text);
            text->clear();
        }
    }
    PacketRingConfig config;
    config.ifindex = interface.index;
    config.mtu = interface.mtu;
    config.ring_bytes = options.packet_ring_bytes;
    // Its memory is not swapped out, and a ring of its own is for few sockets.
    if (lane != 0 && !options.is_set(Opt::packet_ring_bytes)) config.ring_bytes /= 4;
    config.drop_without_packet = options.cq_keep_qp_full;
    config.pool = memory.pool;
    if (options.ring_kind == kXdp) {
        XdpRingConfig xdp;
        xdp.packet = config;
        std::memcpy(xdp.mac.data(), interface.mac.bytes.data(), xdp.mac.size());
        xdp.arena = memory.arena;
        *kind = "xdp";
        const auto ring = open_xdp_ring(xdp, text);
        // A packet ring beside another ring's socket is the same but for speed, and so it is where only a broker may open rings.
        if (ring || (ring.error() != EADDRINUSE && ring.error() != EPERM)) return ring;
        vma_log(info, "engine", "interface {}: a packet ring, for no xdp ring can be had: {}",
                interface.name, *text);
        text->clear();
    }
    *kind = "packet";
    return open_packet_ring(config, text);
}

bool is_of_queues(std::string_view kind) { return kind == "verbs" || kind == "mlx5"; }

// Takes `ring` on every path. `clock`: of its stamps, or null.
Shard* shard_around(const Memory& memory, Ring* ring, int ifindex, unsigned lane,
                    const MacAddr& mac, const char* kind, std::unique_ptr<DeviceClock> clock,
                    const Options& options, Reason* why, std::string* text) {
    Shard::Parts parts;
    parts.arena = memory.arena;
    parts.pool = memory.pool;
    parts.ring = ring;
    parts.ifindex = ifindex;
    parts.lane = lane;
    parts.mac = mac;
    parts.ring_kind = kind;
    parts.secret = random_secret();
    parts.secret2 = random_secret();
    // What a device gives in spite of rules that name ports, the kernel does not have.
    parts.reassembles_udp = options.udp_frags != 0 || is_of_queues(kind);
    Shard* const shard = Shard::make(parts);
    if (shard != nullptr) {
        shard->set_clock(clock.release());
        shard->tcp().memory().set_budget(&tcp_budget(options));
        shard->tcp().set_tick(Duration::millis(options.tcp_timer_resolution_msec));
        return shard;
    }
    delete ring;
    Arena::unmap(memory.arena);
    *why = Reason::memory;
    *text = "the shard arena is full";
    return nullptr;
}

}  // namespace

bool may_have_device_queues(const Options& options) {
    return options.ring_kind == kVerbs || options.ring_kind == kMlx5 ||
           (options.ring_kind == kAuto && may_have_verbs_ports());
}

std::string page_obstacle(size_t page) {
    if (page == Arena::kPage) return "";
    return "this kernel has memory pages of " + std::to_string(page / 1024) +
           " KiB: rings need pages of 4 KiB";
}

VerbsRingConfig verbs_settings(const Options& options) {
    VerbsRingConfig config;
    config.rx_requests = options.rx_wre;
    config.rx_batching = options.rx_wre_batching;
    config.tx_requests = options.tx_wre;
    config.tx_batching = options.tx_wre_batching;
    config.max_inline = options.tx_max_inline;
    config.blueflame = options.bf;
    config.poll_batch = options.cq_poll_batch_max;
    config.prefetch_bytes = options.rx_prefetch_bytes;
    config.prefetch_bytes_before_poll = options.rx_prefetch_bytes_before_poll;
    config.tcp_by_local = options.tcp_3t_rules;
    config.udp_by_local = options.udp_3t_rules;
    config.drop_without_packet = options.cq_keep_qp_full;
    config.stamps = options.hw_ts_conversion != 0;
    // A moderated wake-up is a late one, so somebody has to ask for it; whoever polls without end is never woken.
    const auto any = [&](std::initializer_list<Opt> ids) {
        return std::ranges::any_of(ids, [&](Opt id) { return options.is_set(id); });
    };
    const bool follow = any({Opt::cq_aim_max_count, Opt::cq_aim_max_period_usec,
                             Opt::cq_aim_interval_msec, Opt::cq_aim_interrupts_rate_per_sec});
    const bool asked = follow || any({Opt::cq_moderation_enable, Opt::cq_moderation_count,
                                      Opt::cq_moderation_period_usec});
    if (!asked || !options.cq_moderation_enable || options.rx_poll < 0 || options.select_poll < 0)
        return config;
    config.moderation = {std::min(options.cq_moderation_count, options.rx_wre / 2),
                         options.cq_moderation_period_usec};
    if (follow)
        config.adaptive = {Duration::millis(options.cq_aim_interval_msec), options.cq_aim_max_count,
                           options.cq_aim_max_period_usec, options.cq_aim_interrupts_rate_per_sec};
    return config;
}

Shard* open_shard_on(const Interface& interface, unsigned lane, const Options& options, Reason* why,
                     std::string* text) {
    const int kind = options.ring_kind;
    if (kind == kShm) {
        *why = Reason::ring_failed;
        *text =
            "VMA_RING_KIND=shm names no ring of an interface (VMA_SHM_AFTER is about shared "
            "memory): "
            "use auto, verbs, mlx5, xdp or packet";
        return nullptr;
    }
    const Memory memory = make_memory(options, why, text);
    if (memory.arena == nullptr) return nullptr;
    const char* ring_kind = "";
    const auto ring = open_ring(interface, lane, options, memory, &ring_kind, text);
    if (!ring) {
        *why = reason_of(ring.error());
        if (out_of_descriptors(ring.error())) *text = kNoDescriptor;
        if (ring.error() == ENOMEM) *text += " (no memory left: raise the limit (ulimit -v))";
        Arena::unmap(memory.arena);
        return nullptr;
    }
    auto clock =
        DeviceClock::make(**ring, StampConversion(options.hw_ts_conversion), interface.name);
    return shard_around(memory, *ring, interface.index, lane, interface.mac, ring_kind,
                        std::move(clock), options, why, text);
}

Shard* open_shm_shard(int ifindex, const Options& options, shm::ShmRing** ring, Reason* why,
                      std::string* text) {
    const Memory memory = make_memory(options, why, text);
    if (memory.arena == nullptr) return nullptr;
    const auto opened =
        shm::ShmRing::open({memory.pool, uint32_t(ifindex), random_secret(), random_secret()});
    if (!opened) {
        *why = Reason::ring_failed;
        *text = out_of_descriptors(opened.error())
                    ? kNoDescriptor
                    : "no shm ring (errno " + std::to_string(opened.error()) + ")";
        Arena::unmap(memory.arena);
        return nullptr;
    }
    Shard* const shard = shard_around(memory, *opened, ifindex, Shard::kEveryLane, MacAddr{}, "shm",
                                      nullptr, options, why, text);
    if (shard) *ring = *opened;
    return shard;
}

}  // namespace vma
