#include "sock/mover.h"

#include <atomic>

#include "broker/spawn.h"

namespace vma::sock {
namespace {

class OwnMover final : public Mover {
  public:
    Status restore(int fd, const tcp::Snapshot& s, const RepairQueues& q,
                   RepairOptions& saved) override {
        return repair_restore(fd, s, q, saved);
    }
    void cancel(int fd, const RepairOptions& saved) override { repair_cancel(fd, saved); }
    Status finish(int fd, const tcp::Snapshot& s, const RepairQueues& q,
                  const RepairOptions& saved) override {
        return repair_finish(fd, s, q, saved);
    }
    Status inject(ByteView packet) override { return repair_inject(packet); }
    Status checkpoint(int fd, RepairImage& image, ByteSpan room) override {
        return repair_checkpoint(fd, image, room);
    }
    void resume(int fd, const RepairImage& image) override { repair_resume(fd, image); }
    Status release(int fd, const RepairImage& image) override { return repair_release(fd, image); }
};

class Strays final : public TcpStrays {
  public:
    explicit Strays(Mover& mover) : mover_(mover) {}
    void stray(ByteView packet) override {
        if (mover_.inject(packet)) count++;
    }
    unsigned count = 0;

  private:
    Mover& mover_;
};

OwnMover g_own;
std::atomic<Mover*> g_broker{nullptr}, g_only{nullptr};

}  // namespace

unsigned inject_strays(Shard& shard, Mover& by) {
    Strays strays(by);
    shard.tcp().divert_strays(&strays);
    shard.drain();
    shard.tcp().divert_strays(nullptr);
    return strays.count;
}

Mover& own_mover() { return g_own; }

Mover& mover() {
    if (Mover* const only = g_only.load(std::memory_order_acquire)) return *only;
    Mover* const other = g_broker.load(std::memory_order_acquire);
    return other && !broker::has_net_admin() ? *other : g_own;
}

void set_broker_mover(Mover* broker) { g_broker.store(broker, std::memory_order_release); }
void use_mover_only(Mover* only) { g_only.store(only, std::memory_order_release); }

}  // namespace vma::sock
