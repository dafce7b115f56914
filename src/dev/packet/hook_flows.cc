// The tables of the hook: slots, flows, and what becomes of those whose owner died.
#include <linux/bpf.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "base/sys.h"
#include "dev/packet/bpf_calls.h"
#include "dev/packet/gates.h"
#include "dev/packet/hook.h"

namespace vma {
namespace {

Result<vma_flow_key> to_key(const FlowKey& key) {
    if (key.protocol != IPPROTO_TCP && key.protocol != IPPROTO_UDP) return Errno{EINVAL};
    const IpAddr& local = key.local.addr;
    const IpAddr& remote = key.remote.addr;
    if (!local.is_v4() || local.is_any() || local.is_multicast() || local.is_limited_broadcast() ||
        key.local.port == 0)
        return Errno{EINVAL};
    if (key.connected() && (!remote.is_v4() || remote.is_any())) return Errno{EINVAL};
    vma_flow_key k{};
    std::memcpy(k.local, local.bytes.data(), 16);
    k.local_port = __builtin_bswap16(key.local.port);
    if (key.connected()) {
        std::memcpy(k.remote, remote.bytes.data(), 16);
        k.remote_port = __builtin_bswap16(key.remote.port);
    }
    k.protocol = key.protocol;
    return k;
}

FlowKey from_key(const vma_flow_key& k) {
    FlowKey key;
    key.local = {IpAddr::v6_bytes(k.local, 0), __builtin_bswap16(k.local_port)};
    if (k.remote_port)
        key.remote = {IpAddr::v6_bytes(k.remote, 0), __builtin_bswap16(k.remote_port)};
    key.protocol = k.protocol;
    return key;
}

constexpr int kMembarrierGlobal = 1;  // waits until whatever runs under RCU now has ended

}  // namespace

bool can_be_flow(const FlowKey& key) { return to_key(key).ok(); }

Result<uint32_t> Hook::claim(int data_ring, int doorbell_ring, int owner_page, uint32_t token) {
    for (uint32_t n = 1; n < VMA_SLOTS; ++n) {
        vma_slot& s = slots_[n];
        uint32_t free = 0;
        if (!std::atomic_ref(s.owner).compare_exchange_strong(free, token)) continue;
        s.sleeping = s.xsk_ifindex = s.order = 0;
        s.dropped_full = s.dropped_long = s.doorbells = s.read = 0;
        s.pid = uint32_t(sys::getpid());
        const uint32_t keys[2] = {2 * n, 2 * n + 1};
        const int32_t fds[2] = {data_ring, doorbell_ring};
        int r = owner_page < 0 ? 0 : bpf::update(owners_.fd(), &n, &owner_page, BPF_ANY);
        if (r == 0) r = bpf::update_batch(rings_.fd(), keys, fds, 2);
        if (r == 0) return n;
        std::atomic_ref(s.owner).store(0);
        return Errno{-r};
    }
    return Errno{ENOSPC};
}

void Hook::release(uint32_t slot) {
    bool which[VMA_SLOTS] = {};
    which[slot] = true;
    drop_flows(which, users_ > 1);
}

// Takes the slots out of service: first the generation, with which every flow of theirs is the kernel's again at once, then
// flows, ring table, and last the owner, which makes the slot free.
void Hook::drop_flows(const bool* slots, bool free_slots, std::vector<FlowKey>* connections) {
    for (uint32_t n = 1; n < VMA_SLOTS; ++n)
        if (slots[n]) std::atomic_ref(slots_[n].generation).fetch_add(1);
    vma_flow_key key, next;
    int r = bpf::next_key(flows_.fd(), nullptr, &next);
    // Other processes insert and delete meanwhile, and a walk whose current key vanished starts again: the bound ends it.
    for (unsigned steps = 0; r == 0 && steps < 4 * VMA_FLOWS; ++steps) {
        key = next;
        r = bpf::next_key(flows_.fd(), &key, &next);
        vma_flow flow;
        if (bpf::lookup(flows_.fd(), &key, &flow) != 0) continue;
        // Of any generation: a process that died while it did this left the slot with the next one.
        if (flow.slot >= VMA_SLOTS || !slots[flow.slot]) continue;
        if (bpf::erase(flows_.fd(), &key) != 0) continue;
        count_port(key, -1);
        if (connections && key.protocol == IPPROTO_TCP && key.remote_port)
            connections->push_back(from_key(key));
    }
    if (!free_slots) return;
    for (uint32_t n = 1; n < VMA_SLOTS; ++n) {
        if (!slots[n]) continue;
        const uint32_t keys[2] = {2 * n, 2 * n + 1};
        bpf::erase(rings_.fd(), &keys[0]);
        bpf::erase(rings_.fd(), &keys[1]);
        bpf::erase(owners_.fd(), &n);
        std::atomic_ref(slots_[n].owner).store(0);
    }
}

Status Hook::guard() {
    if (!enter()) return Errno{EPERM};
    Status s;
    // Somebody else's guard ends with him: each process that steers holds the links, too.
    if (std::atomic_ref(head().guarded).load() == 0 || !holds_guard_.load()) {
        if (lock_tables()) {
            s = ensure_guard();
            if (s) {
                std::atomic_ref(head().guarded).store(1);
                holds_guard_.store(true);
            }
            unlock_tables();
        } else {
            s = Errno{EBUSY};
        }
    }
    leave();
    return s;
}

bool Hook::owns(uint32_t slot, uint32_t owner) const {
    return owner != 0 && slot != 0 && slot < VMA_SLOTS &&
           std::atomic_ref(slots_[slot].owner).load() == owner;
}

void Hook::retire(uint32_t slot, uint32_t owner) {
    if (!owns(slot, owner)) return;
    std::atomic_ref(slots_[slot].generation).fetch_add(1);
}

void Hook::bury(uint32_t slot, uint32_t owner) {
    if (!lock_tables()) return;
    if (owns(slot, owner)) {
        bool which[VMA_SLOTS] = {};
        which[slot] = true;
        drop_groups(which);
        drop_flows(which);
    }
    unlock_tables();
}

int Hook::token_of(uint32_t owner) { return owner ? bpf::map_by_id(owner) : -ENOENT; }

int Hook::data_ring(uint32_t slot) const {
    const uint32_t key = 2 * slot;
    uint32_t id = 0;
    const int r = bpf::lookup(rings_.fd(), &key, &id);
    return r < 0 ? r : bpf::map_by_id(id);
}

void Hook::count_port(const vma_flow_key& key, int32_t by) {
    uint32_t& count =
        ports_->flows[key.protocol == IPPROTO_TCP ? 0 : 1][__builtin_bswap16(key.local_port)];
    std::atomic_ref(count).fetch_add(uint32_t(by));
}

bool Hook::enter() {
    inside_.fetch_add(1);
    if (!left_.load()) return true;
    leave();
    return false;
}

void Hook::leave_to_keeper() {
    unsigned rings = 0;
    for (uint32_t n = 1; n < VMA_SLOTS; ++n) rings += owns(n, token_);
    if (++kept_ < rings) return;
    left_.store(true);
    // Who sweeps the tables meanwhile holds their lock.
    while (inside_.load() != 0) sys::raw(SYS_sched_yield);
    drop_tables();
    slots_map_.become_zeros();
    ports_map_.become_zeros();
}

bool Hook::has_doorbell(uint32_t slot, uint32_t map_id) const {
    const uint32_t key = 2 * slot + 1;
    uint32_t id = 0;
    return slot != 0 && slot < VMA_SLOTS && map_id != 0 &&
           bpf::lookup(rings_.fd(), &key, &id) == 0 && id == map_id;
}

Status Hook::gate_flows(uint32_t slot, int owner_page, Gates& gates) {
    if (const int r = bpf::update(owners_.fd(), &slot, &owner_page, BPF_ANY); r < 0)
        return Errno{-r};
    vma_owner& page = gates.page();
    const vma_slot& s = slots_[slot];
    page.dropped_full = s.dropped_full;
    page.dropped_long = s.dropped_long;
    page.doorbells = s.doorbells;
    page.read = s.read;
    page.sleeping = 1;  // somebody may sleep: one ring of the doorbell too many does no harm
    struct Found {
        vma_flow_key key;
        vma_flow flow;
    };
    std::vector<Found> found;
    vma_flow_key next;
    int r = bpf::next_key(flows_.fd(), nullptr, &next);
    for (unsigned steps = 0; r == 0 && steps < 4 * VMA_FLOWS; ++steps) {
        Found f{next, {}};
        r = bpf::next_key(flows_.fd(), &f.key, &next);
        if (bpf::lookup(flows_.fd(), &f.key, &f.flow) != 0 || f.flow.slot != slot ||
            f.flow.generation != s.generation || (f.flow.flags & VMA_FLOW_GATED))
            continue;
        const auto gate = gates.open(from_key(f.key));
        if (!gate && gate.error() == EEXIST) continue;  // the walk began again
        if (!gate) return Errno{gate.error()};
        f.flow.gate = gate->number;
        f.flow.gate_value = gate->value;
        found.push_back(f);
    }
    int failed = 0;
    size_t done = 0;
    for (; done < found.size() && failed == 0; done++) {
        found[done].flow.flags |= VMA_FLOW_GATED;
        failed = bpf::update(flows_.fd(), &found[done].key, &found[done].flow, BPF_EXIST);
    }
    if (failed < 0) {
        while (done-- > 0) {
            found[done].flow.flags &= ~VMA_FLOW_GATED;
            bpf::update(flows_.fd(), &found[done].key, &found[done].flow, BPF_EXIST);
        }
        return Errno{-failed};
    }
    if (!found.empty()) sys::raw(SYS_membarrier, kMembarrierGlobal, 0, 0);
    return {};
}

// Has the owner of the flow given it up? Its entry is then only in the way.
bool Hook::is_stale(const vma_flow& flow) const {
    if (flow.slot >= VMA_SLOTS) return false;
    if (std::atomic_ref(slots_[flow.slot].generation).load() != flow.generation) return true;
    if (!(flow.flags & VMA_FLOW_GATED)) return false;
    uint32_t id = 0, zero = 0;
    if (bpf::lookup(owners_.fd(), &flow.slot, &id) != 0) return false;
    const int page = bpf::map_by_id(id);
    if (page < 0) return false;
    const std::unique_ptr<vma_owner> owner(new (std::nothrow) vma_owner);
    const bool read = owner && bpf::lookup(page, &zero, owner.get()) == 0;
    sys::close(page);
    return read && owner->gates[flow.gate & (VMA_GATES - 1)] != flow.gate_value;
}

// Puts `wanted` in the place of an entry that does not count any more.
bool Hook::reclaim(uint32_t slot, const vma_flow_key& key, const vma_flow& wanted) {
    vma_flow there;
    if (bpf::lookup(flows_.fd(), &key, &there) != 0) return false;
    // The owner of gates knows which flows it has: what is there of its own is left over.
    const bool own = there.slot == slot && (there.flags & wanted.flags & VMA_FLOW_GATED);
    if (!own && !is_stale(there)) return false;
    if (bpf::erase(flows_.fd(), &key) == 0) count_port(key, -1);
    return bpf::update(flows_.fd(), &key, &wanted, BPF_NOEXIST) == 0;
}

Status Hook::steer(uint32_t slot, const FlowKey& key, const FlowGate* gate) {
    const auto k = to_key(key);
    if (!k) return Errno{k.error()};
    const bool guarded = key.protocol == IPPROTO_TCP;
    if (guarded) {
        if (const Status s = this->guard(); !s) return s;
    }
    vma_flow flow{slot, slots_[slot].generation, guarded ? VMA_FLOW_GUARDED : 0, 0, 0, 0};
    if (gate) {
        flow.flags |= VMA_FLOW_GATED;
        flow.gate = gate->number;
        flow.gate_value = gate->value;
    }
    // Counted before it can match, so that no frame of it is rejected early.
    count_port(*k, 1);
    int r = bpf::update(flows_.fd(), &*k, &flow, BPF_NOEXIST);
    if (r == -EEXIST && sweep() != 0) r = bpf::update(flows_.fd(), &*k, &flow, BPF_NOEXIST);
    if (r == -EEXIST && reclaim(slot, *k, flow)) r = 0;
    if (r == 0) return {};
    count_port(*k, -1);
    return Errno{r == -E2BIG ? ENOSPC : -r};
}

// Nobody else replaces a flow that counts, so it is still `from`'s when it is written.
Status Hook::move_flow(uint32_t from, uint32_t to, const FlowKey& key) {
    const auto k = to_key(key);
    if (!k) return Errno{k.error()};
    vma_flow flow;
    if (bpf::lookup(flows_.fd(), &*k, &flow) != 0 || flow.slot != from ||
        flow.generation != slots_[from].generation || (flow.flags & VMA_FLOW_GATED))
        return Errno{ENOENT};
    flow.slot = to;
    flow.generation = slots_[to].generation;
    const int r = bpf::update(flows_.fd(), &*k, &flow, BPF_EXIST);
    return r < 0 ? Status(Errno{-r}) : Status();
}

bool Hook::unsteer(uint32_t slot, const FlowKey& key, const FlowGate* gate) {
    const auto k = to_key(key);
    vma_flow flow;
    if (!k || bpf::lookup(flows_.fd(), &*k, &flow) != 0) return false;
    if (flow.slot != slot || flow.generation != slots_[slot].generation) return false;
    if (gate && (!(flow.flags & VMA_FLOW_GATED) || flow.gate != gate->number ||
                 flow.gate_value != gate->value))
        return false;
    if (bpf::erase(flows_.fd(), &*k) != 0) return false;
    count_port(*k, -1);
    return true;
}

bool Hook::owner_is_dead(uint32_t owner) const {
    return owner != 0 && owner != token_ && bpf::map_exists(owner) == 0;
}

// The lock is a word that holds its holder's life token: a dead holder is recognised. Waits up to a second.
bool Hook::lock_tables() {
    std::atomic_ref word(head().lock);
    for (int i = 0; i < 1000; ++i) {
        uint32_t holder = 0;
        if (word.compare_exchange_strong(holder, token_)) return true;
        if (owner_is_dead(holder) && word.compare_exchange_strong(holder, token_)) return true;
        const timespec nap{0, 1000000};
        sys::ppoll(nullptr, 0, &nap);
    }
    return false;
}

void Hook::unlock_tables() { std::atomic_ref(head().lock).store(0); }

void Hook::bereave(std::vector<FlowKey>& connections) {
    SpinGuard guard(bereaved_lock_);
    for (const FlowKey& key : connections)
        if (bereaved_.size() < kMostBereaved) bereaved_.push_back(key);
}

void Hook::take_bereaved(std::vector<FlowKey>& out) {
    SpinGuard guard(bereaved_lock_);
    out.insert(out.end(), bereaved_.begin(), bereaved_.end());
    bereaved_.clear();
}

unsigned Hook::sweep() {
    if (!enter()) return 0;
    const unsigned count = sweep_tables();
    leave();
    return count;
}

unsigned Hook::sweep_tables() {
    bool dead[VMA_SLOTS] = {};
    unsigned count = 0;
    uint32_t last_alive = token_, last_dead = 0;
    auto look = [&] {
        count = 0;
        for (uint32_t n = 1; n < VMA_SLOTS; ++n) {
            const uint32_t owner = std::atomic_ref(slots_[n].owner).load();
            dead[n] = false;
            if (owner == 0 || owner == last_alive) continue;
            dead[n] = owner == last_dead || owner_is_dead(owner);
            (dead[n] ? last_dead : last_alive) = owner;
            count += dead[n];
        }
    };
    look();
    const bool guarded = std::atomic_ref(head().guarded).load() != 0;
    if (count == 0 && !guarded) return 0;
    if (!lock_tables()) return 0;
    if (count) look();  // another process may have swept while we waited
    if (count) {
        drop_groups(dead);
        std::vector<FlowKey> connections;
        drop_flows(dead, true, &connections);
        bereave(connections);
    }
    if (guarded) (void)ensure_guard();
    unlock_tables();
    return count;
}

}  // namespace vma
