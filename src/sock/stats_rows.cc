#include "sock/stats_rows.h"

#include <netinet/in.h>

#include <atomic>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "base/spin_lock.h"
#include "config/banner.h"
#include "engine/runtime.h"
#include "engine/shm_peers.h"
#include "engine/tcp_defaults.h"
#include "sock/epoll.h"
#include "sock/poll_select.h"
#include "sock/socket.h"
#include "sock/stats_requests.h"
#include "sock/walk.h"
#include "stats/capture.h"
#include "stats/pool_text.h"
#include "stats/publisher.h"

namespace vma::sock {
namespace {

// Rows of kernel sockets by descriptor number, as long as the descriptor table. Zero pages on demand.
SpinLock g_lock;
stats::RowHandle* g_rows = nullptr;
std::atomic<bool> g_started{false};
SpinLock g_rings_lock;
std::atomic<unsigned> g_rings_shown{0};  // rings that have a row; changed under the lock

// The place of `fd`, or null. g_lock held.
stats::RowHandle* row_of(int fd, bool make) {
    const unsigned size = fd_slots.size.load(std::memory_order_acquire);
    if (unsigned(fd) >= size) return nullptr;
    if (g_rows == nullptr) {
        if (!make) return nullptr;
        void* memory = sys::mmap(nullptr, size * sizeof(stats::RowHandle), PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (sys::failed(memory)) return nullptr;
        g_rows = static_cast<stats::RowHandle*>(memory);
    }
    return &g_rows[fd];
}

stats::RingIdentity identity_of(const Shard& shard) {
    stats::RingIdentity id;
    id.ifindex = uint32_t(shard.ifindex());
    std::strncpy(id.kind, shard.ring_kind(), sizeof id.kind - 1);
    const bool by_memory = !shard.caps().has_neighbors;  // of no interface; the name is lo's
    Runtime::for_each_space([&](NetSpace& space) {
        if (by_memory ? space.key() != ShmPeers::namespace_key() : !space.has(shard)) return;
        const auto view = space.monitor().view();
        if (const Interface* interface = view->interface(shard.ifindex()))
            std::strncpy(id.interface, interface->name.c_str(), sizeof id.interface - 1);
    });
    return id;
}

// [lease]
stats::RingNumbers numbers_of(Shard& shard, const RingCounters& c) {
    stats::RingNumbers n;
    n.rx_frames = c.rx_frames;
    n.rx_bytes = c.rx_bytes;
    n.tx_frames = c.tx_frames;
    n.tx_bytes = c.tx_bytes;
    n.rx_dropped = c.drops.sum();
    n.tx_refused = c.tx_refused;
    n.wakeups = c.wakeups;
    n.polls = shard.full_polls();
    n.empty_polls = shard.empty_polls();
    n.drained_max = shard.drained_max();
    n.backlog = shard.backlog();
    const PoolCounters& pool = shard.pool().counters();
    n.pool_in_use = pool.in_use;
    n.kept = shard.kept().now() + shard.lent().now();
    n.kept_reclaimed = shard.kept().reclaimed();
    n.pool_free = pool.free;
    n.pool_bytes = pool.bytes_in_use;
    n.pool_high_water = pool.high_water;
    n.pool_refused = pool.failed_takes;
    n.arena_bytes = shard.arena().in_use();
    n.arena_limit = shard.arena().reserved();
    n.tcp_memory = shard.tcp().memory().bytes_out();
    n.tcp_refused = shard.tcp().memory().refused();
    const TcpEngineCounters& tcp = shard.tcp().counters();
    n.tcp_segments_in = tcp.segments_in;
    n.tcp_segments_out = tcp.segments_out;
    n.tcp_resets = tcp.resets_sent;
    n.tcp_frames_refused = tcp.frames_refused;
    n.tcp_connections = tcp.connections;
    n.tcp_half_open = tcp.half_open;
    n.tcp_time_wait = tcp.time_wait;
    n.tcp_listeners = tcp.listeners;
    n.tcp_pressed = tcp_budget(Runtime::options()).pressures();
    return n;
}

void publish_rings() {
    stats_show_rings();
    const auto shards = Runtime::shards();
    for (unsigned i = 0; i < shards.size(); i++) {
        Shard& shard = *shards[i];
        stats::RingIdentity id = identity_of(shard);
        stats::RingNumbers n;
        DropCounters drops;
        {
            LeaseGuard guard(shard.lease());
            id.open = shard.open();
            const RingCounters ring = shard.ring_counters();
            n = numbers_of(shard, ring);
            drops = shard.drops();
            drops += shard.tcp().drops();
            drops += ring.drops;
        }
        stats::set_ring(i, id, n, drops);
    }
}

void publish_sockets() {
    for_each_own_socket([](Socket& socket, int fd) {
        // Once, not for each of its duplicates.
        if (socket.fd() == fd) socket.publish_all();
    });
}

void publish_waits() {
    poll_publish_counts();
    for_each_object([](Object& object, int fd) {
        if (object.kind != ObjectKind::epoll || object.inherited.load(std::memory_order_acquire))
            return;
        auto& epoll = static_cast<Epoll&>(static_cast<Pollable&>(object));
        if (epoll.fd() == fd) epoll.publish_counts();
    });
}

}  // namespace

void stats_start(const char* program) {
    if (g_started.load(std::memory_order_relaxed) || g_started.exchange(true)) return;
    stats::configure(Runtime::options().stats_shmem_dir, program ? program : "", kVersion);
}

void stats_kernel_socket(int fd, int domain, int type, int protocol, Reason why) {
    stats::SocketIdentity id;
    id.fd = fd;
    id.domain = uint16_t(domain);
    id.type = uint16_t(type);
    id.protocol = uint16_t(protocol ? protocol : type == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP);
    id.path = stats::Path::kernel;
    id.reason = why;
    SpinGuard guard(g_lock);
    stats::RowHandle* row = row_of(fd, true);
    if (row == nullptr) return;
    stats::remove_socket(*row);
    stats::set_socket(*row, id);
}

void stats_object_made(int fd) {
    SpinGuard guard(g_lock);
    if (stats::RowHandle* row = row_of(fd, false)) stats::remove_socket(*row);
}

void stats_show_rings() {
    const auto shards = Runtime::shards();
    for (unsigned i = g_rings_shown.load(std::memory_order_acquire); i < shards.size(); i++) {
        stats::RingIdentity id = identity_of(*shards[i]);
        id.open = 1;
        SpinGuard guard(g_rings_lock);
        if (i != g_rings_shown.load(std::memory_order_relaxed)) continue;  // somebody else's turn
        if (!stats::set_ring(i, id, {}, {})) return;
        g_rings_shown.store(i + 1, std::memory_order_release);
    }
}

void stats_tick() {
    stats::look();
    if (stats::mend())
        vma_log(warning, "stats", "somebody has cut the statistics page short: it is made anew");
    stats_requests();
    const Instant now = monotonic_now();
    if (!stats::due(now)) return;
    publish_rings();
    publish_sockets();
    publish_waits();
    stats::published(now);
}

void stats_republish() {
    g_rings_shown.store(0, std::memory_order_release);
    publish_sockets();
    stats_show_rings();  // the page is there only since
}

stats::SocketNumbers SocketCounters::snapshot() const {
    const auto get = [](const std::atomic<uint64_t>& counter) {
        return counter.load(std::memory_order_relaxed);
    };
    stats::SocketNumbers n;
    n.rx_packets = get(rx_packets);
    n.rx_bytes = get(rx_bytes);
    n.rx_eagain = get(rx_eagain);
    n.rx_errors = get(rx_errors);
    n.rx_os_packets = get(rx_os_packets);
    n.rx_os_bytes = get(rx_os_bytes);
    n.tx_packets = get(tx_packets);
    n.tx_bytes = get(tx_bytes);
    n.tx_eagain = get(tx_eagain);
    n.tx_errors = get(tx_errors);
    n.tx_os_packets = get(tx_os_packets);
    n.tx_os_bytes = get(tx_os_bytes);
    n.rx_zcopy = get(rx_zcopy);
    n.rx_kept = get(rx_kept);
    n.rx_callback = get(rx_callback);
    n.tx_dummy = get(tx_dummy);
    n.rx_migrations = get(rx_migrations);
    n.tx_migrations = get(tx_migrations);
    n.migrations_refused = get(migrations_refused);
    return n;
}

void stats_report_memory() {
    const auto shards = Runtime::shards();
    for (unsigned i = 0; i < shards.size(); i++) {
        stats::RingNumbers n;
        {
            LeaseGuard guard(shards[i]->lease());
            n = numbers_of(*shards[i], shards[i]->ring_counters());
        }
        char text[stats::kPoolTextRoom];
        stats_report({text, stats::pool_text(text, sizeof text, i, n)},
                     stats::ran_short(n) ? LogLevel::info : LogLevel::debug);
    }
}

void stats_forget_in_child() {
    new (&g_lock) SpinLock;
    new (&g_rings_lock) SpinLock;
    latency_forget_in_child();
    stats_file_forget_in_child();
    stats::capture_forget_in_child();
    g_rings_shown.store(0, std::memory_order_relaxed);
    stats::forget_in_child();
}

}  // namespace vma::sock
