#include "dev/packet/packet_ring.h"

#include <fmt/format.h>
#include <linux/bpf.h>
#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "base/sys.h"
#include "dev/packet/bpf_calls.h"
#include "dev/packet/hook.h"
#include "dev/packet/interfaces.h"
#include "dev/packet/receive.h"
#include "dev/packet/transmit.h"

namespace vma {
namespace {

class PacketRing final : public Ring {
  public:
    ~PacketRing() override;
    Status open(const PacketRingConfig& config, std::string* why);

    const RingCaps& caps() const override { return caps_; }
    unsigned recv(std::span<Packet> out) override;
    unsigned send(std::span<const TxFrame> frames, int* why) override;
    Status steer(const FlowKey& key) override { return hook_->steer(slot_, key); }
    void unsteer(const FlowKey& key) override { (void)hook_->unsteer(slot_, key); }
    int wake_fd() const override { return doorbell_.fd(); }
    bool arm() override;
    void disarm() override;
    RingCounters counters() const override;
    RingEstate estate() const override {
        return {slot_, hook_->token(), receiver_.data_address(), receiver_.data_bytes()};
    }

  private:
    Status open_rings(Hook& hook, const PacketRingConfig& config, std::string* why);
    vma_slot& slot() const { return hook_->slot(slot_); }
    void silence_doorbell();

    RingCaps caps_;
    int pid_ = 0;
    Hook* hook_ = nullptr;
    uint32_t slot_ = 0;
    OwnFd doorbell_;
    PrivateMapping bell_consumer_, bell_producer_;
    Receiver receiver_;
    Transmitter transmitter_;
    uint64_t tx_frames_ = 0, tx_bytes_ = 0, tx_refused_ = 0;
};

PacketRing::~PacketRing() {
    if (sys::getpid() != pid_) {  // a forked child: none of this is its own
        receiver_.forget();
        bell_consumer_.forget();
        bell_producer_.forget();
        return;
    }
    if (slot_) hook_->release(slot_);
    if (hook_) hook_->close();
}

Status PacketRing::open(const PacketRingConfig& config, std::string* why) {
    pid_ = sys::getpid();
    const auto interfaces = list_interfaces();
    if (!interfaces) {
        *why = fmt::format("listing the interfaces failed: errno {}", interfaces.error());
        return Errno{interfaces.error()};
    }
    const InterfaceBrief* found = nullptr;
    for (const InterfaceBrief& i : *interfaces)
        if (i.ifindex == config.ifindex) found = &i;
    if (!found || found->type != 1) {
        *why = fmt::format("interface {} {}", config.ifindex,
                           found ? "is not Ethernet" : "does not exist");
        return Errno{found ? EINVAL : ENODEV};
    }
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
    caps_.mtu = config.mtu;
    caps_.max_gso_bytes = Transmitter::kMostFrameBytes - 14;
    caps_.max_gso_segments = Transmitter::kMostSegments;
    caps_.tx_checksum = caps_.rx_checksum = caps_.udp_gso = caps_.zero_copy_receive = true;
    return {};
}

Status PacketRing::open_rings(Hook& hook, const PacketRingConfig& config, std::string* why) {
    const uint32_t wanted =
        config.ring_bytes < kLeastRingBytes ? kLeastRingBytes : config.ring_bytes;
    const uint32_t bytes = wanted > (1u << 30) ? 1u << 30 : std::bit_ceil(wanted);
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
    Status s = slot ? receiver_.open(data, bytes, *config.pool) : Status(Errno{slot.error()});
    sys::close(data);  // the mappings keep it
    if (slot) slot_ = *slot;
    const Status adopted = doorbell_.adopt(bell);
    if (s) s = adopted;
    if (s) s = bell_consumer_.map(doorbell_.fd(), 4096, PROT_READ | PROT_WRITE, 0);
    if (s) s = bell_producer_.map(doorbell_.fd(), 4096, PROT_READ, 4096);
    if (!s)
        *why = s.error() == ENOSPC
                   ? fmt::format("all {} rings of this network namespace are taken", VMA_SLOTS - 1)
                   : fmt::format("setting the receive ring up failed: errno {}", s.error());
    return s;
}

unsigned PacketRing::recv(std::span<Packet> out) { return receiver_.recv(out); }

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
    std::atomic_ref sleeping(slot().sleeping);
    sleeping.store(1, std::memory_order_relaxed);
    // Pairs with the exchange in the program's submit: either it sees `sleeping`, or we see its producer position.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!receiver_.pending()) return true;
    sleeping.store(0, std::memory_order_relaxed);
    return false;
}

void PacketRing::disarm() {
    std::atomic_ref(slot().sleeping).store(0, std::memory_order_relaxed);
    silence_doorbell();
}

RingCounters PacketRing::counters() const {
    RingCounters c;
    const vma_slot& s = slot();
    c.rx_frames = receiver_.frames();
    c.rx_bytes = receiver_.bytes();
    c.tx_frames = tx_frames_;
    c.tx_bytes = tx_bytes_;
    c.rx_dropped = __atomic_load_n(&s.dropped_full, __ATOMIC_RELAXED) +
                   __atomic_load_n(&s.dropped_long, __ATOMIC_RELAXED) + receiver_.malformed();
    c.tx_refused = tx_refused_;
    c.wakeups = __atomic_load_n(&s.doorbells, __ATOMIC_RELAXED);
    return c;
}

}  // namespace

Result<Ring*> open_packet_ring(const PacketRingConfig& config, std::string* why) {
    std::string ignored;
    std::unique_ptr<PacketRing> ring(new (std::nothrow) PacketRing);
    if (!ring) return Errno{ENOMEM};
    if (Status s = ring->open(config, why ? why : &ignored); !s) return Errno{s.error()};
    return static_cast<Ring*>(ring.release());
}

unsigned sweep_packet_rings() { return Hook::sweep_all(); }
void guard_packet_rings() { Hook::guard_all(); }

}  // namespace vma
