#include "dev/packet/packet_ring.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "base/sys.h"
#include "dev/packet/bpf_calls.h"
#include "dev/packet/gates.h"
#include "dev/packet/hook.h"
#include "dev/packet/interfaces.h"
#include "dev/packet/packet_ring_class.h"

namespace vma {
namespace {

std::atomic<RingKeeper*> g_keeper{nullptr};

uint32_t usable_bytes(uint32_t wanted) {
    if (wanted < kLeastRingBytes) return kLeastRingBytes;
    return wanted > (1u << 30) ? 1u << 30 : std::bit_ceil(wanted);
}

Status check_interface(int ifindex, std::string* why) {
    const auto interfaces = list_interfaces();
    if (!interfaces) {
        *why = fmt::format("listing the interfaces failed: errno {}", interfaces.error());
        return Errno{interfaces.error()};
    }
    const InterfaceBrief* found = nullptr;
    for (const InterfaceBrief& i : *interfaces)
        if (i.ifindex == ifindex) found = &i;
    if (found && found->type == 1) return {};
    *why = fmt::format("interface {} {}", ifindex, found ? "is not Ethernet" : "does not exist");
    return Errno{found ? EINVAL : ENODEV};
}

int create_owner_page() {
    return bpf::create_map(BPF_MAP_TYPE_ARRAY, "vma_owner", 4, sizeof(vma_owner), 1,
                           BPF_F_MMAPABLE);
}

}  // namespace

PacketRing::~PacketRing() {
    if (sys::getpid() != pid_) {  // a forked child: none of this is its own
        receiver_.forget();
        bell_consumer_.forget();
        bell_producer_.forget();
        gates_.forget();
        token_map_.forget();
        return;
    }
    if (page_.load())
        gates_.shut_all();  // the slot goes with the life token
    else if (slot_) {
        leave_groups();
        hook_->release(slot_);
    }
    if (hook_) hook_->close();
}

Status PacketRing::open(const PacketRingConfig& config, std::string* why) {
    pid_ = sys::getpid();
    ifindex_ = config.ifindex;
    if (Status s = check_interface(config.ifindex, why); !s) return s;
    if (Status s = transmitter_.open(config.ifindex, why); !s) return s;
    struct Rings {
        PacketRing* ring;
        const PacketRingConfig* config;
        std::string why;
        Status opened;
    } rings{this, &config, {}, {}};
    const auto open_beside = [](Hook& opened_hook, void* context) {
        auto& r = *static_cast<Rings*>(context);
        r.opened = r.ring->open_rings(opened_hook, *r.config, &r.why);
        return r.ring->slot_;
    };
    auto hook = Hook::open(config.ifindex, why, {open_beside, &rings});
    if (!hook) {
        slot_ = 0;
        return Errno{hook.error()};
    }
    hook_ = *hook;
    if (!rings.opened) {
        *why = std::move(rings.why);
        return rings.opened;
    }
    token_ = hook_->token();
    set_caps(config.mtu);
    return {};
}

// What another process has opened; its privileges are in the descriptors.
Status PacketRing::open_lent(const PacketRingConfig& config, std::string* why) {
    pid_ = sys::getpid();
    ifindex_ = config.ifindex;
    RingKeeper* const keeper = ring_keeper();
    if (keeper == nullptr) {
        *why = "there is no broker to open the ring";
        return Errno{EPERM};
    }
    if (Status s = check_interface(config.ifindex, why); !s) return s;
    LentRing lent;
    if (Status s = keeper->open(config.ifindex, usable_bytes(config.ring_bytes), lent); !s) {
        *why = fmt::format("the broker opens no ring: errno {}", s.error());
        return s;
    }
    // First what makes it ours: from then on others see that its owner lives.
    Status s = token_map_.map(lent.token, 4096, PROT_READ, 0);
    if (s) s = gates_.map(lent.owner);
    if (s) s = receiver_.open(lent.data, lent.bytes, *config.pool, config.drop_without_packet);
    if (s) s = map_doorbell(std::exchange(lent.bell, -1));
    if (s) s = transmitter_.adopt(std::exchange(lent.transmit, -1));
    if (s) s = ingress_.adopt(std::exchange(lent.ingress, -1));
    if (s) s = egress_.adopt(std::exchange(lent.egress, -1));
    lent.close_all();
    if (!s) {
        *why = fmt::format("setting the lent ring up failed: errno {}", s.error());
        return s;
    }
    slot_ = lent.slot;
    token_ = lent.token_id;
    page_.store(&gates_.page(), std::memory_order_release);
    set_caps(config.mtu);
    return {};
}

void PacketRing::set_caps(uint32_t mtu) {
    caps_.mtu = mtu;
    caps_.max_gso_bytes = Transmitter::kMostFrameBytes - 14;
    caps_.max_gso_segments = Transmitter::kMostSegments;
    caps_.tx_checksum = caps_.rx_checksum = caps_.udp_gso = caps_.zero_copy_receive = true;
}

Status PacketRing::map_doorbell(int bell) {
    Status s = doorbell_.adopt(bell);
    if (s) s = bell_consumer_.map(doorbell_.fd(), 4096, PROT_READ | PROT_WRITE, 0);
    if (s) s = bell_producer_.map(doorbell_.fd(), 4096, PROT_READ, 4096);
    return s;
}

Status PacketRing::open_rings(Hook& hook, const PacketRingConfig& config, std::string* why) {
    const uint32_t bytes = usable_bytes(config.ring_bytes);
    const int data = bpf::create_map(BPF_MAP_TYPE_RINGBUF, "vma_ring", 0, 0, bytes, 0);
    const int bell =
        data < 0 ? data : bpf::create_map(BPF_MAP_TYPE_RINGBUF, "vma_bell", 0, 0, 4096, 0);
    if (bell < 0) {
        if (data >= 0) sys::close(data);
        *why =
            fmt::format("creating a receive ring of {} KiB failed: errno {}", bytes >> 10, -bell);
        return Errno{-bell};
    }
    const auto slot = hook.claim(data, bell);
    Status s = slot ? receiver_.open(data, bytes, *config.pool, config.drop_without_packet)
                    : Status(Errno{slot.error()});
    sys::close(data);  // the mappings keep it
    if (slot) slot_ = *slot;
    const Status belled = map_doorbell(bell);
    if (s) s = belled;
    if (!s)
        *why = s.error() == ENOSPC
                   ? fmt::format("all {} rings of this network namespace are taken", VMA_SLOTS - 1)
                   : fmt::format("setting the receive ring up failed: errno {}", s.error());
    return s;
}

Status PacketRing::lose_privileges() {
    RingKeeper* const keeper = ring_keeper();
    if (page_.load(std::memory_order_relaxed)) return {};
    if (keeper == nullptr) return Errno{EPERM};
    const int page = create_owner_page();
    if (page < 0) return Errno{-page};
    Status s = gates_.map(page);
    if (s) s = keeper->show(ifindex_, slot_, token_, doorbell_.fd());
    if (s) s = hook_->gate_flows(slot_, page, gates_);
    if (s) leave_groups();
    sys::close(page);
    if (!s) {
        gates_.unmap();
        return s;
    }
    page_.store(&gates_.page(), std::memory_order_release);
    hook_->leave_to_keeper();
    return {};
}

Status PacketRing::steer(const FlowKey& key, int twin) {
    if (!page_.load(std::memory_order_relaxed)) {
        const Status s = hook_->steer(slot_, key);
        if (s && key.protocol == IPPROTO_TCP) take_fragments(key.local.addr);
        return s;
    }
    if (!can_be_flow(key)) return Errno{EINVAL};
    if (twin < 0) return Errno{EACCES};
    const auto gate = gates_.open(key);
    if (!gate) return Errno{gate.error()};
    const Status done = ring_keeper()->steer(slot_, key, *gate, twin);
    FlowGate was;
    if (!done) gates_.shut(key, &was);
    return done;
}

void PacketRing::unsteer(const FlowKey& key) {
    if (!page_.load(std::memory_order_relaxed)) {
        (void)hook_->unsteer(slot_, key);
        return;
    }
    FlowGate was;
    // With that the flow is the kernel's; its entry is only in the way of whoever wants the tuple next.
    if (gates_.shut(key, &was)) ring_keeper()->unsteer(slot_, key, was);
}

// Of rings for which somebody else steers each flow has a gate in its owner's page; two pages cannot change at once.
Status PacketRing::take_flow(const FlowKey& key, const Ring& from) {
    const auto* const other = dynamic_cast<const PacketRing*>(&from);
    if (other == nullptr || other->hook_ != hook_ || hook_ == nullptr || page_.load() ||
        other->page_.load())
        return Errno{EOPNOTSUPP};
    const Status s = hook_->move_flow(other->slot_, slot_, key);
    if (s && key.protocol == IPPROTO_TCP) take_fragments(key.local.addr);
    return s;
}

// TCP's, from the first flow of an address on. Without them what comes in fragments comes again and again, so no more is said.
void PacketRing::take_fragments(const IpAddr& local) {
    if (fragments_of_.contains(local)) return;
    if (hook_->add_to_group(slot_, {{local, 0}, ifindex_, IPPROTO_TCP}))
        fragments_of_.insert(local);
}

// A broker steers no groups: what is copied on behalf of others it cannot check as it can a tuple.
Status PacketRing::join(const Endpoint& local, int twin) {
    if (page_.load(std::memory_order_relaxed)) return Errno{EOPNOTSUPP};
    const GroupPort where{local, ifindex_};
    // What arrives between the last two steps comes by both: so whatever takes long goes first.
    if (const Status s = hook_->attach_filter(twin); !s) return s;
    const auto group = groups_.find(local);
    if (group == groups_.end()) {
        if (const Status s = hook_->add_to_group(slot_, where); !s) return s;
    }
    const Status s = hook_->mute_twin(slot_, where, twin);
    if (s)
        ++groups_[local];
    else if (group == groups_.end())
        hook_->remove_from_group(slot_, where);
    return s;
}

uint32_t PacketRing::kept_from(const Endpoint& local, int twin) const {
    const GroupPort where{local, ifindex_};
    return groups_.contains(local) ? hook_->kept_from(where, twin)
                                   : Hook::kept_from(where, twin, muted_before_);
}

uint32_t PacketRing::leave(const Endpoint& local, int twin) {
    const auto found = groups_.find(local);
    if (found == groups_.end()) return kept_from(local, twin);
    const GroupPort where{local, ifindex_};
    const uint32_t kept = hook_->unmute_twin(where, twin);
    if (--found->second == 0) {
        groups_.erase(found);
        hook_->remove_from_group(slot_, where);
    }
    return kept;
}

// They are the kernel's again; the twins' filters are still there and keep everything.
void PacketRing::leave_groups() {
    for (const IpAddr& local : fragments_of_)
        hook_->remove_from_group(slot_, {{local, 0}, ifindex_, IPPROTO_TCP});
    fragments_of_.clear();
    if (groups_.empty()) return;
    muted_before_ = hook_->unmute_twins(slot_);
    for (const auto& [group, twins] : groups_) hook_->remove_from_group(slot_, {group, ifindex_});
    groups_.clear();
}

unsigned PacketRing::recv(std::span<Packet> out) {
    const unsigned n = receiver_.recv(out);
    tell_position();
    return n;
}

void PacketRing::tell_position() {
    // For the program, which looks when connections are asked for; not after every packet, as it is on another core.
    if (receiver_.position() - told_ > receiver_.data_bytes() / 64) {
        told_ = receiver_.position();
        vma_owner* const page = page_.load(std::memory_order_relaxed);
        __atomic_store_n(page ? &page->read : &slot().read, told_, __ATOMIC_RELAXED);
    }
}

unsigned PacketRing::send(std::span<const TxFrame> frames, int* why) {
    unsigned n = 0;
    for (const TxFrame& f : frames) {
        const int error = transmitter_.send(f);
        if (error) {
            ++tx_refused_;
            if (why) *why = error;
            break;
        }
        ++n;
        ++tx_frames_;
        tx_bytes_ += f.head.size() + f.payload_len;
    }
    return n;
}

void PacketRing::silence_doorbell() {
    auto* consumer = reinterpret_cast<uint64_t*>(bell_consumer_.at());
    auto* producer = reinterpret_cast<uint64_t*>(bell_producer_.at());
    std::atomic_ref(*consumer).store(__atomic_load_n(producer, __ATOMIC_ACQUIRE),
                                     std::memory_order_release);
}

bool PacketRing::arm() {
    silence_doorbell();
    const std::atomic_ref<uint32_t> word = sleeping();
    word.store(1, std::memory_order_relaxed);
    // Pairs with the exchange in the program's submit: either it sees `sleeping`, or we see its producer position.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!receiver_.pending()) return true;
    word.store(0, std::memory_order_relaxed);
    return false;
}

void PacketRing::disarm() {
    sleeping().store(0, std::memory_order_relaxed);
    silence_doorbell();
}

RingCounters PacketRing::counters() const {
    RingCounters c;
    // Another thread may give the slot up just now; what is then in its place reads as zeros.
    const vma_owner* const page = page_.load(std::memory_order_acquire);
    const auto read = [](const auto& from, RingCounters& to) {
        to.drops.add(DropReason::ring_full, __atomic_load_n(&from.dropped_full, __ATOMIC_RELAXED));
        to.drops.add(DropReason::ring_frame_length,
                     __atomic_load_n(&from.dropped_long, __ATOMIC_RELAXED));
        to.wakeups = __atomic_load_n(&from.doorbells, __ATOMIC_RELAXED);
    };
    if (page)
        read(*page, c);
    else
        read(slot(), c);
    c.rx_frames = receiver_.frames();
    c.rx_bytes = receiver_.bytes();
    c.tx_frames = tx_frames_;
    c.tx_bytes = tx_bytes_;
    c.drops.add(DropReason::ring_damaged, receiver_.malformed());
    c.drops.add(DropReason::no_buffer, receiver_.dropped());
    c.tx_refused = tx_refused_;
    return c;
}

Result<Ring*> open_packet_ring(const PacketRingConfig& config, std::string* why) {
    std::string ignored;
    std::unique_ptr<PacketRing> ring(new (std::nothrow) PacketRing);
    if (!ring) return Errno{ENOMEM};
    const Status opened = ring->open(config, why ? why : &ignored);
    if (opened) return static_cast<Ring*>(ring.release());
    if (opened.error() == EPERM && ring_keeper() != nullptr) {
        auto lent = open_lent_packet_ring(config, &ignored);
        // Nobody to ask: then it is the capability that is missing.
        if (lent || lent.error() != EPERM) {
            if (!lent && why) *why = ignored;
            return lent;
        }
    }
    return Errno{opened.error()};
}

Result<Ring*> open_lent_packet_ring(const PacketRingConfig& config, std::string* why) {
    std::string ignored;
    std::unique_ptr<PacketRing> ring(new (std::nothrow) PacketRing);
    if (!ring) return Errno{ENOMEM};
    const Status opened = ring->open_lent(config, why ? why : &ignored);
    if (!opened) return Errno{opened.error()};
    return static_cast<Ring*>(ring.release());
}

Result<LentRing> lend_packet_ring(Hook& hook, int ifindex, uint32_t bytes) {
    std::string ignored;
    LentRing lent;
    Transmitter transmitter;
    Status s = check_interface(ifindex, &ignored);
    if (s) s = transmitter.open(ifindex, &ignored);
    if (!s) return Errno{s.error()};
    lent.bytes = usable_bytes(bytes);
    bpf::MapInfo token;
    const auto made = [&](int& place, int fd) {
        place = fd;
        if (s && fd < 0) s = Errno{-fd};
    };
    made(lent.data, bpf::create_map(BPF_MAP_TYPE_RINGBUF, "vma_ring", 0, 0, lent.bytes, 0));
    made(lent.bell, bpf::create_map(BPF_MAP_TYPE_RINGBUF, "vma_bell", 0, 0, 4096, 0));
    made(lent.owner, create_owner_page());
    made(lent.token, bpf::create_map(BPF_MAP_TYPE_ARRAY, "vma_token", 4, 8, 1, BPF_F_MMAPABLE));
    // Also for TCP: the guard is on every interface before the first flow, as when its owner steers.
    if (s) s = hook.guard();
    made(lent.ingress, hook.link_on(ifindex, bpf::kTcxIngress));
    made(lent.egress, hook.link_on(ifindex, bpf::kTcxEgress));
    made(lent.transmit, sys::fcntl(transmitter.fd(), F_DUPFD_CLOEXEC, 3));
    if (s && bpf::map_info(lent.token, token) != 0) s = Errno{EIO};
    if (s) {
        lent.token_id = token.id;
        const auto slot = hook.claim(lent.data, lent.bell, lent.owner, token.id);
        if (slot) {
            lent.slot = *slot;
            return lent;
        }
        s = Errno{slot.error()};
    }
    lent.close_all();
    return Errno{s.error()};
}

void LentRing::close_all() {
    for (int* fd : {&data, &bell, &owner, &token, &transmit, &ingress, &egress}) {
        if (*fd >= 0) sys::close(*fd);
        *fd = -1;
    }
}

void set_ring_keeper(RingKeeper* keeper) { g_keeper.store(keeper, std::memory_order_release); }
RingKeeper* ring_keeper() { return g_keeper.load(std::memory_order_acquire); }

unsigned sweep_packet_rings(std::vector<FlowKey>* bereaved) { return Hook::sweep_all(bereaved); }
void guard_packet_rings() { Hook::guard_all(); }

}  // namespace vma
