// PacketRing, for who builds on it (src/dev/xdp); others take packet_ring.h. Thread rules: ring.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/own_fd.h"
#include "dev/packet/gates.h"
#include "dev/packet/hook.h"
#include "dev/packet/packet_ring.h"
#include "dev/packet/receive.h"
#include "dev/packet/transmit.h"

namespace vma {

class PacketRing : public Ring {
  public:
    ~PacketRing() override;
    Status open(const PacketRingConfig& config, std::string* why);
    Status open_lent(const PacketRingConfig& config, std::string* why);

    const RingCaps& caps() const override { return caps_; }
    unsigned recv(std::span<Packet> out) override;
    RingBacklog backlog() const override { return receiver_.backlog(); }
    unsigned send(std::span<const TxFrame> frames, int* why) override;
    Status steer(const FlowKey& key, int twin) override;
    void unsteer(const FlowKey& key) override;
    Status take_flow(const FlowKey& key, const Ring& from) override;
    Status join(const Endpoint& local, int twin) override;
    uint32_t kept_from(const Endpoint& local, int twin) const override;
    uint32_t leave(const Endpoint& local, int twin) override;
    Status lose_privileges() override;
    int wake_fd() const override { return doorbell_.fd(); }
    bool arm() override;
    void disarm() override;
    RingCounters counters() const override;
    RingEstate estate() const override {
        return {slot_, token_, receiver_.data_address(), receiver_.data_bytes()};
    }

  protected:
    vma_slot& slot() const { return hook_->slot(slot_); }
    void tell_position();

    int pid_ = 0;
    Hook* hook_ = nullptr;  // null: lent
    uint32_t slot_ = 0;
    int ifindex_ = 0;
    RingCaps caps_;
    OwnFd doorbell_;
    Receiver receiver_;

  private:
    Status open_rings(Hook& hook, const PacketRingConfig& config, std::string* why);
    std::atomic_ref<uint32_t> sleeping() const {
        vma_owner* const page = page_.load(std::memory_order_relaxed);
        return std::atomic_ref(page ? page->sleeping : slot().sleeping);
    }
    void set_caps(uint32_t mtu);
    void leave_groups();
    void take_fragments(const IpAddr& local);
    Status map_doorbell(int bell);
    void silence_doorbell();

    uint32_t token_ = 0;
    std::map<Endpoint, unsigned> groups_;  // of this ring in the hook: twins that share it
    std::vector<Hook::Muted>
        muted_before_;               // the twins of its groups, when those became the kernel's
    std::set<IpAddr> fragments_of_;  // local addresses whose fragments of TCP the ring gets
    Gates gates_;
    std::atomic<vma_owner*> page_{nullptr};  // of gates_: somebody else steers
    PrivateMapping token_map_;               // lent: the life token
    OwnFd ingress_, egress_;                 // lent: what keeps the programs on the interface
    PrivateMapping bell_consumer_, bell_producer_;
    Transmitter transmitter_;
    uint64_t tx_frames_ = 0, tx_bytes_ = 0, tx_refused_ = 0;
    uint64_t told_ = 0;  // the position that the program knows
};

}  // namespace vma
