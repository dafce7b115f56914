// Multicast in the tables of the hook: which rings get copies of a group, and which twins must not queue them.
#include <linux/bpf.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/sys.h"
#include "dev/packet/bpf_calls.h"
#include "dev/packet/hook.h"

namespace vma {
namespace {

uint32_t on_wire(const IpAddr& group) { return __builtin_bswap32(group.v4_host()); }

vma_group_key to_key(const GroupPort& where) {
    return {on_wire(where.group.addr), uint32_t(where.ifindex), __builtin_bswap16(where.group.port),
            where.protocol};
}

// What the count of flows of a port is kept by (Hook::count_port).
vma_flow_key port_of(const vma_group_key& key) {
    vma_flow_key counted{};
    counted.local_port = key.port;
    counted.protocol = uint8_t(key.protocol);
    return counted;
}

// *to: the entry of a twin for a group. False: it is no socket.
bool twin_key(const GroupPort& where, int twin, vma_twin_key* to) {
    socklen_t len = sizeof to->cookie;
    to->group = on_wire(where.group.addr);
    to->ifindex = uint32_t(where.ifindex);
    return sys::getsockopt(twin, SOL_SOCKET, SO_COOKIE, &to->cookie, &len) == 0;
}

// Takes the rings out that `gone` says; those behind move up. How many are left.
template <class Gone>
unsigned keep_others(vma_group& group, Gone&& gone) {
    unsigned n = 0;
    for (const auto ring : group.rings)
        if (ring.slot != 0 && !gone(ring.slot, ring.generation)) group.rings[n++] = ring;
    for (unsigned i = n; i < VMA_GROUP_RINGS; ++i) group.rings[i] = {};
    return n;
}

}  // namespace

bool Hook::counts(uint32_t slot, uint32_t generation) const {
    return slot < VMA_SLOTS && std::atomic_ref(slots_[slot].generation).load() == generation;
}

Status Hook::add_to_group(uint32_t slot, const GroupPort& where) {
    const IpAddr& group = where.group.addr;
    const bool of_fragments = where.group.port == 0;
    if (!group.is_v4() || group.is_multicast() == of_fragments || where.ifindex <= 0)
        return Errno{EINVAL};
    if (!lock_tables()) return Errno{EBUSY};
    const vma_group_key key = to_key(where);
    vma_group members{};
    const bool exists = bpf::lookup(groups_.fd(), &key, &members) == 0;
    const unsigned n = keep_others(members, [&](uint32_t s, uint32_t generation) {
        return s == slot || !counts(s, generation);
    });
    int r = -ENOSPC;
    if (n < VMA_GROUP_RINGS) {
        members.rings[n] = {slot, slots_[slot].generation};
        if (!exists) count_port(port_of(key), 1);
        r = bpf::update(groups_.fd(), &key, &members, BPF_ANY);
        if (r < 0 && !exists) count_port(port_of(key), -1);
    }
    unlock_tables();
    return r < 0 ? Status(Errno{r == -E2BIG ? ENOSPC : -r}) : Status();
}

void Hook::remove_from_group(uint32_t slot, const GroupPort& where) {
    if (!lock_tables()) return;
    const vma_group_key key = to_key(where);
    vma_group members;
    if (bpf::lookup(groups_.fd(), &key, &members) == 0) {
        const unsigned n = keep_others(members, [&](uint32_t s, uint32_t generation) {
            return s == slot || !counts(s, generation);
        });
        if (n != 0)
            bpf::update(groups_.fd(), &key, &members, BPF_EXIST);
        else if (bpf::erase(groups_.fd(), &key) == 0)
            count_port(port_of(key), -1);
    }
    unlock_tables();
}

Status Hook::attach_filter(int twin) {
    const int filter = twin_program_.fd();
    const int r = sys::setsockopt(twin, SOL_SOCKET, SO_ATTACH_BPF, &filter, sizeof filter);
    return r < 0 ? Status(Errno{-r}) : Status();
}

Status Hook::mute_twin(uint32_t slot, const GroupPort& where, int twin) {
    vma_twin_key key;
    if (!twin_key(where, twin, &key)) return Errno{EBADF};
    const vma_twin value{slot, 0};
    const int r = bpf::update(twins_.fd(), &key, &value, BPF_ANY);
    return r < 0 ? Status(Errno{r == -E2BIG ? ENOSPC : -r}) : Status();
}

uint32_t Hook::kept_from(const GroupPort& where, int twin) const {
    vma_twin_key key;
    vma_twin muted;
    if (!twin_key(where, twin, &key) || bpf::lookup(twins_.fd(), &key, &muted) < 0) return 0;
    return muted.kept;
}

uint32_t Hook::kept_from(const GroupPort& where, int twin, std::span<const Muted> before) {
    vma_twin_key key;
    if (!twin_key(where, twin, &key)) return 0;
    for (const Muted& muted : before)
        if (std::memcmp(&muted.key, &key, sizeof key) == 0) return muted.kept;
    return 0;
}

uint32_t Hook::unmute_twin(const GroupPort& where, int twin) {
    vma_twin_key key;
    vma_twin muted;
    if (!twin_key(where, twin, &key) || bpf::take(twins_.fd(), &key, &muted) < 0) return 0;
    return muted.kept;
}

// Called with the tables locked.
void Hook::drop_groups(const bool* dead_slots) {
    const auto dead = [&](uint32_t slot) { return slot < VMA_SLOTS && dead_slots[slot]; };
    vma_group_key group, next_group;
    int r = bpf::next_key(groups_.fd(), nullptr, &next_group);
    for (unsigned steps = 0; r == 0 && steps < 4 * VMA_GROUPS; ++steps) {
        group = next_group;
        r = bpf::next_key(groups_.fd(), &group, &next_group);
        vma_group members;
        if (bpf::lookup(groups_.fd(), &group, &members) != 0) continue;
        bool changed = false;
        const unsigned n = keep_others(members, [&](uint32_t slot, uint32_t) {
            changed = changed || dead(slot);
            return dead(slot);
        });
        if (!changed) continue;
        if (n != 0) {
            bpf::update(groups_.fd(), &group, &members, BPF_EXIST);
        } else if (bpf::erase(groups_.fd(), &group) == 0) {
            count_port(port_of(group), -1);
        }
    }
    drop_twins(dead_slots);
}

std::vector<Hook::Muted> Hook::unmute_twins(uint32_t slot) {
    bool which[VMA_SLOTS] = {};
    which[slot] = true;
    std::vector<Muted> muted;
    drop_twins(which, &muted);
    return muted;
}

void Hook::drop_twins(const bool* slots, std::vector<Muted>* dropped) {
    vma_twin_key twin, next;
    int r = bpf::next_key(twins_.fd(), nullptr, &next);
    for (unsigned steps = 0; r == 0 && steps < 4 * VMA_TWINS; ++steps) {
        twin = next;
        r = bpf::next_key(twins_.fd(), &twin, &next);
        vma_twin value;
        if (bpf::lookup(twins_.fd(), &twin, &value) == 0 && value.slot < VMA_SLOTS &&
            slots[value.slot] && bpf::take(twins_.fd(), &twin, &value) == 0 && dropped)
            dropped->push_back({twin, value.kept});
    }
}

}  // namespace vma
