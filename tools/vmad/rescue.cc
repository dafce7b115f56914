#include "vmad/rescue.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/clock.h"
#include "base/sys.h"
#include "dev/packet/hook.h"
#include "engine/salvage.h"
#include "repair/repair.h"
#include "vmad/socket_facts.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace vmad {
namespace {

using vma::ByteView;
using vma::Endpoint;
using vma::Salvage;
using vma::Seq;

constexpr uint16_t kFirstFreePort = 1024;
constexpr size_t kMostBytes = size_t(1) << 30;  // of all queues together
constexpr size_t kPage = 4096;

// A connection that is in the kernel and still in repair mode.
struct Restored {
    int fd = -1;
    const HeldTwin* held = nullptr;
    bool reset = false;
    vma::tcp::Snapshot snapshot;
    vma::RepairOptions options;
    std::vector<uint8_t> bytes;
    size_t unacked = 0, unsent = 0, unread = 0;
    vma::RepairQueues queues() const {
        const ByteView all(bytes);
        return {all.first(unacked), all.subspan(unacked, unsent),
                all.subspan(unacked + unsent, unread)};
    }
};

vma::FlowKey flow_of(const vma::tcp::Snapshot& s) {
    vma::FlowKey key;
    key.local = s.local;
    key.remote = s.remote;
    key.protocol = IPPROTO_TCP;
    return key;
}

class Work {
  public:
    explicit Work(const Estate& estate) : estate_(estate) {}
    void restore_all(const WatchedArena& arena);
    void let_go();
    RescueCounters counters;
    std::vector<vma::FlowKey> lost;

  private:
    void restore(const Salvage& salvage, const Salvage::Found& found, bool damaged);
    void own_flow(const vma::tcp::Snapshot& s);
    void lose(const vma::tcp::Snapshot& s);
    const HeldTwin* held_for(const Salvage::Found& found) const;
    bool fill(const Salvage& salvage, const Salvage::Found& found, Restored& r);

    const Estate& estate_;
    std::vector<Restored> restored_;
    size_t bytes_ = 0;
    vma::Hook* hook_ = nullptr;  // of the arena in work
    uint32_t slot_ = 0;
};

// The hook of a dead ring, whose slot the broker keeps, as this process's: the broker's mappings of the tables are not
// inherited. Null: it cannot be had.
class HookHere {
  public:
    explicit HookHere(const vma::broker::Watch& ring) {
        const auto opened = vma::Hook::open(int(ring.ifindex), nullptr);
        if (!opened) return;
        hook_ = *opened;
        usable_ = hook_->shared() && hook_->owns(ring.slot, ring.token);
    }
    ~HookHere() {
        if (hook_) hook_->close();
    }
    HookHere(const HookHere&) = delete;
    HookHere& operator=(const HookHere&) = delete;
    vma::Hook* get() const { return usable_ ? hook_ : nullptr; }

  private:
    vma::Hook* hook_ = nullptr;
    bool usable_ = false;
};

// Under its listener's flow the hook lets the kernel have the segments of a connection as soon as it knows it: a
// half-restored one would take and acknowledge them. It goes with the others of the slot. If it cannot be had, all stays as it is.
void Work::own_flow(const vma::tcp::Snapshot& s) {
    if (hook_ != nullptr) (void)hook_->steer(slot_, flow_of(s));
}

// The dead process's mapping of its arena, at the address it had there. Null: it cannot be had.
void* map_arena(const WatchedArena& a, size_t* bytes) {
    struct stat st {};
    if (fstat(a.memfd.get(), &st) != 0 || st.st_size <= 0) return nullptr;
    *bytes = std::min<size_t>(size_t(st.st_size), a.facts.reserve) / kPage * kPage;
    if (*bytes == 0) return nullptr;
    void* want = reinterpret_cast<void*>(a.facts.arena);
    // Shared: a child that waits for a connection is told in this memory.
    void* at = mmap(want, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE,
                    a.memfd.get(), 0);
    if (at == MAP_FAILED) return nullptr;
    if (at != want) {
        munmap(at, *bytes);
        return nullptr;
    }
    return at;
}

const HeldTwin* Work::held_for(const Salvage::Found& found) const {
    const auto local = vma::broker::to_wire(found.snapshot.local);
    const auto remote = vma::broker::to_wire(found.snapshot.remote);
    for (const HeldTwin& h : estate_.held)
        if (h.facts.connection == reinterpret_cast<uintptr_t>(found.address) &&
            h.facts.local == local && h.facts.remote == remote)
            return &h;
    return nullptr;
}

bool Work::fill(const Salvage& salvage, const Salvage::Found& found, Restored& r) {
    const vma::tcp::Snapshot& s = found.snapshot;
    const Seq first = Seq::min(s.snd_una, s.snd_end);
    const auto to_send = size_t(uint32_t(s.snd_end - first));
    r.unacked = uint32_t(Seq::max(Seq::min(s.snd_nxt, s.snd_end), first) - first);
    r.unsent = to_send - r.unacked;
    // Nobody reads any more, unless a child does.
    r.unread = r.held ? s.unread : 0;
    if (bytes_ + to_send + r.unread > kMostBytes) return false;
    bytes_ += to_send + r.unread;
    r.bytes.resize(to_send + r.unread);
    r.snapshot.unread = uint32_t(r.unread);
    return salvage.copy_unacked(found, first, r.bytes.data(), to_send) &&
           salvage.copy_unread(found, r.bytes.data() + to_send, r.unread);
}

// Nobody carries it on.
void Work::lose(const vma::tcp::Snapshot& s) {
    counters.lost++;
    lost.push_back(flow_of(s));
}

void Work::restore(const Salvage& salvage, const Salvage::Found& found, bool damaged) {
    Restored r;
    r.snapshot = found.snapshot;
    r.held = found.waiting ? nullptr : held_for(found);
    r.reset = found.waiting || (damaged && !salvage.coherent(found));
    // Through the same checks as if it had come by message.
    if (!vma::broker::from_wire(vma::broker::to_wire(found.snapshot))) {
        counters.nonsense++;
        return;
    }
    if (r.reset) {
        // Only its numbers are needed for the RST.
        r.held = nullptr;
        r.snapshot.snd_una = r.snapshot.snd_end = r.snapshot.snd_nxt;
        r.snapshot.fin_queued = r.snapshot.fin_sent = r.snapshot.peer_fin = false;
        r.snapshot.unread = 0;
    } else if (!fill(salvage, found, r)) {
        lose(found.snapshot);
        return;
    }
    const Endpoint& local = r.snapshot.local;
    r.fd = r.held ? r.held->twin.get() : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    bool bound = false;
    if (r.held) {
        const auto facts = socket_facts(r.fd);
        bound = facts.local.port != 0;
        if (!facts.tcp || facts.connected || facts.netns_cookie != own_netns_cookie() ||
            (bound && facts.local.port != local.port)) {
            lose(found.snapshot);
            return;
        }
    }
    if (r.fd < 0 || (!bound && !estate_.owns_port(local) && local.port < kFirstFreePort)) {
        lose(found.snapshot);
        if (r.fd >= 0 && !r.held) ::close(r.fd);
        return;
    }
    if (!bound && !estate_.owns_port(local)) {
        const sockaddr_in name = local.to_sockaddr_in();
        bound = ::bind(r.fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
        if (!bound) {
            lose(found.snapshot);
            if (!r.held) ::close(r.fd);
            return;
        }
    }
    if (!found.steered) own_flow(r.snapshot);
    if (!vma::repair_restore(r.fd, r.snapshot, r.queues(), r.options)) {
        lose(found.snapshot);
        if (!r.held) ::close(r.fd);
        return;
    }
    restored_.push_back(std::move(r));
}

void Work::restore_all(const WatchedArena& arena) {
    size_t bytes = 0;
    void* base = map_arena(arena, &bytes);
    if (base == nullptr) {
        counters.nonsense++;
        return;
    }
    vma::LentMemory lent;
    if (arena.data_ring.valid()) {
        // Producer page, then the data twice.
        lent.bytes = 2 * size_t(arena.facts.ring_bytes);
        void* ring =
            mmap(nullptr, kPage + lent.bytes, PROT_READ, MAP_SHARED, arena.data_ring.get(), kPage);
        if (ring != MAP_FAILED) {
            lent.ours = static_cast<const uint8_t*>(ring) + kPage;
            lent.theirs = arena.facts.ring_data;
        }
    }
    Salvage salvage;
    if (!salvage.open(base, bytes, arena.facts.root, lent)) {
        counters.nonsense++;
        return;
    }
    const bool damaged = salvage.was_held();
    const HookHere hook(arena.facts);
    hook_ = hook.get();
    slot_ = arena.facts.slot;
    // The peer throws away what has an older timestamp than it had from the dead process.
    const vma::Instant now = vma::monotonic_now() + arena.clock_ahead;
    counters.nonsense += salvage.for_each(
        now, [&](const Salvage::Found& found) { restore(salvage, found, damaged); });
    hook_ = nullptr;
}

void Work::let_go() {
    for (Restored& r : restored_) {
        const bool whole = vma::repair_finish(r.fd, r.snapshot, r.queues(), r.options).ok();
        if (r.held) {
            counters.shared++;
            // Inside the arena: checked when the hold came, and mapped now.
            auto* done = reinterpret_cast<uint32_t*>(r.held->facts.share);
            __atomic_store_n(done, 1, __ATOMIC_RELEASE);
            vma::sys::futex(done, 1 /* FUTEX_WAKE */, INT_MAX);
            continue;
        }
        // Else nobody could listen on the port while this connection, or its TIME_WAIT, is there.
        const int one = 1;
        setsockopt(r.fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (r.reset) {
            const linger now{1, 0};
            setsockopt(r.fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        }
        (r.reset ? counters.reset : whole ? counters.delivered : counters.lost)++;
        ::close(r.fd);
    }
}

}  // namespace

bool Estate::owns_port(const Endpoint& local) const {
    if (trusted) return true;
    for (const Endpoint& p : proven)
        if (p.port == local.port && (p.addr.is_any() || p.addr == local.addr)) return true;
    return false;
}

RescueCounters rescue(const Estate& estate, bool (*pause)(void*), void* context,
                      std::vector<vma::FlowKey>& lost) {
    Work work(estate);
    for (const WatchedArena& arena : estate.arenas) work.restore_all(arena);
    if (!pause(context)) {
        for (const WatchedArena& arena : estate.arenas) {
            const HookHere here(arena.facts);
            if (vma::Hook* const hook = here.get())
                hook->retire(arena.facts.slot, arena.facts.token);
        }
    }
    work.let_go();
    lost = std::move(work.lost);
    return work.counters;
}

}  // namespace vmad
