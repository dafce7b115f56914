// The tables of the hook: slots, flows, and what becomes of those whose owner died.
#include <linux/bpf.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/sys.h"
#include "dev/packet/bpf_calls.h"
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

}  // namespace

Result<uint32_t> Hook::claim(int data_ring, int doorbell_ring) {
    for (uint32_t n = 1; n < VMA_SLOTS; ++n) {
        vma_slot& s = slots_[n];
        uint32_t free = 0;
        if (!std::atomic_ref(s.owner).compare_exchange_strong(free, token_)) continue;
        s.sleeping = 0;
        s.dropped_full = s.dropped_long = s.doorbells = 0;
        s.pid = uint32_t(sys::getpid());
        const uint32_t keys[2] = {2 * n, 2 * n + 1};
        const int32_t fds[2] = {data_ring, doorbell_ring};
        const int r = bpf::update_batch(rings_.fd(), keys, fds, 2);
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
void Hook::drop_flows(const bool* slots, bool free_slots) {
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
        if (bpf::erase(flows_.fd(), &key) == 0) count_port(key, -1);
    }
    if (!free_slots) return;
    for (uint32_t n = 1; n < VMA_SLOTS; ++n) {
        if (!slots[n]) continue;
        const uint32_t keys[2] = {2 * n, 2 * n + 1};
        bpf::erase(rings_.fd(), &keys[0]);
        bpf::erase(rings_.fd(), &keys[1]);
        std::atomic_ref(slots_[n].owner).store(0);
    }
}

Status Hook::guard() {
    if (std::atomic_ref(head().guarded).load() != 0) return {};
    if (!lock_tables()) return Errno{EBUSY};
    const Status s = ensure_guard();
    if (s) std::atomic_ref(head().guarded).store(1);
    unlock_tables();
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

Status Hook::steer(uint32_t slot, const FlowKey& key) {
    const auto k = to_key(key);
    if (!k) return Errno{k.error()};
    const bool guarded = key.protocol == IPPROTO_TCP;
    if (guarded) {
        if (const Status s = this->guard(); !s) return s;
    }
    const vma_flow flow{slot, slots_[slot].generation, guarded ? VMA_FLOW_GUARDED : 0, 0};
    // Counted before it can match, so that no frame of it is rejected early.
    count_port(*k, 1);
    int r = bpf::update(flows_.fd(), &*k, &flow, BPF_NOEXIST);
    if (r == -EEXIST && sweep() != 0) r = bpf::update(flows_.fd(), &*k, &flow, BPF_NOEXIST);
    if (r == 0) return {};
    count_port(*k, -1);
    return Errno{r == -E2BIG ? ENOSPC : -r};
}

bool Hook::unsteer(uint32_t slot, const FlowKey& key) {
    const auto k = to_key(key);
    vma_flow flow;
    if (!k || bpf::lookup(flows_.fd(), &*k, &flow) != 0) return false;
    if (flow.slot != slot || flow.generation != slots_[slot].generation) return false;
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

unsigned Hook::sweep() {
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
    if (count) drop_flows(dead);
    if (guarded) (void)ensure_guard();
    unlock_tables();
    return count;
}

}  // namespace vma
