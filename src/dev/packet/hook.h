// Hook: the BPF programs and their maps, one set per network namespace shared by every process that may (CAP_SYS_ADMIN,
// same layout version), otherwise one set of this process alone.
//
// The first comer loads; later ones find the program on an interface and take the same maps and links by id. Nothing is
// pinned: programs, maps and links are held by the descriptors and mappings of the processes that use them and vanish with
// the last. Mappings are not inherited by fork and descriptors are OwnFds, so a forked child holds nothing.
//
// Ownership of a slot: its `owner` word is the id of a map, the life token, that only the owner's memory mapping holds. The
// id is alive exactly as long as that process: valid across pid namespaces and never taken by a successor. When it is gone,
// any holder that calls sweep() takes the slot's flows out, so that those tuples are the kernel's again.
//
// Thread rules: open and close by one thread at a time per process (they are also serialised against other processes of
// the namespace); steer, unsteer, sweep and claim from any thread. Objects are private to the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/own_fd.h"
#include "base/result.h"
#include "base/spin_lock.h"
#include "dev/packet/keeper.h"
#include "dev/packet/layout.h"
#include "dev/ring.h"

struct vma_programs;

namespace vma {

// A mapping that fork does not inherit; unmapped at the end.
class PrivateMapping {
  public:
    PrivateMapping() = default;
    ~PrivateMapping() { reset(); }
    PrivateMapping(const PrivateMapping&) = delete;
    PrivateMapping& operator=(const PrivateMapping&) = delete;
    Status map(int fd, size_t bytes, int protection, uint64_t offset, bool populate = false);
    void reset();
    void forget() { at_ = nullptr; }  // in a forked child, where it does not exist
    // Zeros in its place, without a moment in which nothing is there: for readers on other threads.
    void become_zeros();
    uint8_t* at() const { return at_; }

  private:
    uint8_t* at_ = nullptr;
    size_t bytes_ = 0;
};

class Gates;

// Can it be a flow of a hook: a unicast IPv4 TCP or UDP tuple?
bool can_be_flow(const FlowKey& key);

// An IPv4 multicast group and a port, on an interface.
struct GroupPort {
    Endpoint group;
    int ifindex = 0;
    uint8_t protocol = IPPROTO_UDP;
};

class Hook {
  public:
    // The hook of the calling thread's namespace with its program on interface `ifindex`; one object per process and
    // namespace, counted. *why: what failed, in words. Errors: EPERM (a capability is missing: *why names them), EOPNOTSUPP
    // (no TCX: Linux before 6.6), ENODEV, those of bpf(2).
    // `meanwhile`, if given, runs with the tables in place while the program is attached, on a thread of its own: it may claim.
    // Both wait for RCU grace periods, which then pass together.
    struct Meanwhile {
        uint32_t (*run)(Hook& hook,
                        void* context);  // the slot claimed, or 0; freed again if attaching fails
        void* context;
    };
    static Result<Hook*> open(int ifindex, std::string* why, Meanwhile meanwhile = {});
    void close();

    bool shared() const { return shared_; }  // other processes can find it
    uint64_t cookie() const { return cookie_; }

    // A free slot whose data and doorbell ring these are (descriptors stay the caller's). ENOSPC: all taken.
    Result<uint32_t> claim(int data_ring, int doorbell_ring) {
        return claim(data_ring, doorbell_ring, -1, token_);
    }
    // The same for another process, whose life token is `token` and whose owner page is `owner_page` (-1: it has none).
    Result<uint32_t> claim(int data_ring, int doorbell_ring, int owner_page, uint32_t token);
    // Takes out every flow of the slot, then frees it. The last slot of this process is left to the others' sweep, which
    // finds its owner gone: freeing it waits for two grace periods, which a process that ends need not see.
    void release(uint32_t slot);
    vma_slot& slot(uint32_t n) { return slots_[n]; }

    // EEXIST: steered already. ENOSPC: table full. EINVAL: not a unicast IPv4 TCP or UDP tuple. ENETUNREACH: the first TCP flow
    // needs the egress guard on every interface, and that could not be attached.
    // `gate`: for the owner of a slot that has an owner page; replaces what it has for this tuple under another gate.
    Status steer(uint32_t slot, const FlowKey& key, const FlowGate* gate = nullptr);
    // A flow without a gate from one slot to another, at once. ENOENT: it is not `from`'s.
    Status move_flow(uint32_t from, uint32_t to, const FlowKey& key);
    // Only a flow of this slot (and gate); false when there is none.
    bool unsteer(uint32_t slot, const FlowKey& key, const FlowGate* gate = nullptr);

    // ---- Multicast: copies, beside what the kernel goes on delivering
    // From now on the slot's ring gets a copy of what comes to the group. Again for the same slot: no effect. EINVAL: not an
    // IPv4 group and port. ENOSPC: VMA_GROUP_RINGS rings have it. EBUSY: the tables stayed locked.
    Status add_to_group(uint32_t slot, const GroupPort& where);
    void remove_from_group(uint32_t slot, const GroupPort& where);
    // From now on the kernel socket `twin`, which has the hook's filter, does not queue what came to the group on that
    // interface and was copied to rings.
    Status attach_filter(int twin);
    Status mute_twin(uint32_t slot, const GroupPort& where, int twin);
    // How many datagrams the filter has kept from it for that; 0: it is not muted.
    uint32_t kept_from(const GroupPort& where, int twin) const;
    uint32_t unmute_twin(const GroupPort& where, int twin);  // kept_from() at the end
    // All that were muted for the slot, each as it was.
    struct Muted {
        vma_twin_key key;
        uint32_t kept;
    };
    std::vector<Muted> unmute_twins(uint32_t slot);
    static uint32_t kept_from(const GroupPort& where, int twin, std::span<const Muted> before);

    // ---- A process that is about to lose its privileges
    // The slot gets an owner page, and every flow of it a gate. After this no program runs any more that has seen a flow
    // of the slot without one. On failure all is as before.
    Status gate_flows(uint32_t slot, int owner_page, Gates& gates);
    // One of the rings of this process does without the hook from now on. With the last one the process gives up what it
    // could write the tables with; it keeps the programs on their interfaces alive, and its life token.
    void leave_to_keeper();
    bool left() const { return left_.load(std::memory_order_acquire); }
    // The link that holds a program on an interface, as a descriptor of the caller's; -errno.
    int link_on(int ifindex, uint32_t type) const;
    // Descriptors of the tables that say whose a flow is, the caller's. CAP_SYS_ADMIN.
    struct FlowTables {
        int flows = -1, slots = -1, ports = -1;
        uint32_t slots_id = 0;  // what this hook is told from others by
        void close_all();
    };
    Status borrow_tables(FlowTables& out) const;
    // Is that map the doorbell of the slot?
    bool has_doorbell(uint32_t slot, uint32_t map_id) const;

    uint32_t token() const { return token_; }

    // The egress guard on every interface now, for steer() of processes that may not attach anything.
    Status guard();

    // For whoever cleans up after another process, while it keeps that process's life token (so that nobody else does).
    // From now on the kernel has the slot's flows; they are still in the table.
    bool owns(uint32_t slot, uint32_t owner) const;  // is that token the slot's owner?
    void retire(uint32_t slot, uint32_t owner);
    // Takes the flows out and frees the slot.
    void bury(uint32_t slot, uint32_t owner);
    // The life token of a process as a descriptor, or -errno; and the data ring of a slot. CAP_SYS_ADMIN.
    static int token_of(uint32_t owner);
    int data_ring(uint32_t slot) const;

    // Gives the tuples of dead processes back to the kernel and puts the guard onto new interfaces. How many slots were freed.
    // Cheap when nothing happened: one system call per other process.
    unsigned sweep();

    // Of all hooks of this process. Any thread, also while the last ring goes. `bereaved`: gets the TCP connections of the dead,
    // whose flows this process has taken out since it was asked last, of the calling thread's namespace.
    static unsigned sweep_all(std::vector<FlowKey>* bereaved = nullptr);
    static void guard_all();

  private:
    struct Link {
        OwnFd fd;
        int ifindex = 0;
        uint32_t type = 0;
    };
    static constexpr unsigned kMostLinks = 64;
    static constexpr size_t kMostBereaved = 4096;  // who is beyond learns it when he sends

    Hook() = default;
    ~Hook() = default;
    Status start(int ifindex, std::string* why, Meanwhile meanwhile);
    Status load(std::string* why);
    bool join(int ifindex);
    bool join_program(uint32_t program_id);
    Status adopt_tables(const vma_programs& found);
    void drop_tables();
    Status map_tables(int slots, int ports);
    Status make_token();
    Status ensure_link(int ifindex, uint32_t type, int program, uint32_t program_id);
    Status ensure_guard();
    bool owner_is_dead(uint32_t owner) const;
    unsigned sweep_tables();
    bool lock_tables();
    void unlock_tables();
    void drop_flows(const bool* dead_slots, bool free_slots = true,
                    std::vector<FlowKey>* connections = nullptr);
    void bereave(std::vector<FlowKey>& connections);
    void take_bereaved(std::vector<FlowKey>& out);
    void drop_groups(const bool* dead_slots);
    void drop_twins(const bool* slots, std::vector<Muted>* dropped = nullptr);
    bool counts(uint32_t slot, uint32_t generation) const;
    void count_port(const vma_flow_key& key, int32_t by);
    bool is_stale(const vma_flow& flow) const;
    bool reclaim(uint32_t slot, const vma_flow_key& key, const vma_flow& wanted);
    // Between the two, the tables are there. False: they are given up.
    bool enter();
    void leave() { inside_.fetch_sub(1); }
    vma_hook_head& head() { return *reinterpret_cast<vma_hook_head*>(&slots_[0]); }

    template <class Fn>
    static void for_each(Fn&& fn);

    uint64_t cookie_ = 0;
    std::atomic<unsigned> users_{
        0};  // rings, and threads in sweep_all() or guard_all(); changed under the registry's lock
    uint32_t token_ = 0;
    bool shared_ = false;
    unsigned kept_ = 0;  // rings that do without
    std::atomic<bool> left_{false};
    std::atomic<bool> holds_guard_{false};  // the egress links are among links_
    std::atomic<uint32_t> inside_{0};
    SpinLock bereaved_lock_;  // innermost
    std::vector<FlowKey> bereaved_;
    OwnFd namespace_, flows_, rings_, owners_, groups_, twins_;
    OwnFd rx_program_, tx_program_, twin_program_;
    PrivateMapping slots_map_, ports_map_, token_map_;
    vma_slot* slots_ = nullptr;
    vma_ports* ports_ = nullptr;
    Link links_[kMostLinks];
};

}  // namespace vma
