// A ring on which nothing arrives and to which anything may be sent: for tests that need a shard. They override what they look at.
#pragma once

#include "dev/ring.h"
#include "pkt/pool.h"

namespace vma {

class QuietRing : public Ring {
  public:
    const RingCaps& caps() const override { return caps_; }
    unsigned recv(std::span<Packet>) override { return 0; }
    RingBacklog backlog() const override { return {}; }
    unsigned send(std::span<const TxFrame> frames, int*) override {
        return unsigned(frames.size());
    }
    Status steer(const FlowKey&, int) override { return {}; }
    void unsteer(const FlowKey&) override {}
    int wake_fd() const override { return -1; }
    bool arm() override { return true; }
    void disarm() override {}
    RingCounters counters() const override { return {}; }

  protected:
    RingCaps caps_;
};

}  // namespace vma
