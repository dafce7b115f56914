// One process that the broker serves: its session, what it has deposited, and the operations that are done for it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/time.h"
#include "broker/dispatch.h"
#include "dev/packet/hook.h"
#include "vmad/ledger.h"
#include "vmad/policy.h"
#include "vmad/registry.h"
#include "vmad/rescue.h"
#include "vmad/socket_facts.h"

namespace vmad {

class Client final : public vma::broker::Operations {
  public:
    static constexpr size_t kMostArenas = 64;
    static constexpr size_t kMostHeld = 65536;

    // Takes the session. Who is at its other end is what the kernel says. `may_be_trusted`: a process that has privileges now is
    // believed, until it says that it gives them up. `policy`: asked at every request; `where`: the namespace that this process
    // serves; `ledger`: what its process has; `sharing`: who introduces it to others, null: nobody. All outlive the client. Null: who
    // it is cannot be known.
    static std::unique_ptr<Client> make(int session, bool may_be_trusted, const Policy& policy,
                                        const Namespace& where, Ledger& ledger, Sharing* sharing);
    ~Client();

    int session() const { return session_.get(); }
    int pidfd() const { return pidfd_.get(); }
    pid_t pid() const { return peer_.pid; }
    uid_t user() const { return peer_.user; }
    // Takes what has arrived, at most `most` messages. False: the session is over.
    bool serve(unsigned most);
    bool trusted() const { return dispatcher_.trusted(); }
    bool leaving() const { return leaving_; }
    bool has_estate() const { return !estate_.arenas.empty() || !rings_.empty(); }
    // Its end: what it left. The client serves no more.
    Estate take_estate();
    // The process is dead, or its memory is gone with exec: rings of it that no rescue looks after are given to the kernel.
    void bury_rings();

    vma::broker::SocketFacts inspect(int fd) override;
    uint64_t netns_cookie() override;
    vma::Status bind(int fd, const vma::Endpoint& local) override;
    vma::Result<vma::ByteView> read_queues(int memfd, uint32_t bytes) override;
    vma::Status restore(int twin, const vma::tcp::Snapshot& snapshot,
                        const vma::RepairQueues& queues, vma::RepairOptions& saved) override;
    void cancel(int twin, const vma::RepairOptions& saved) override;
    vma::Status finish(int twin, const vma::tcp::Snapshot& snapshot,
                       const vma::RepairQueues& queues, const vma::RepairOptions& saved) override;
    vma::Status checkpoint(int twin, vma::RepairImage& image, int& memfd) override;
    void resume(int twin, const vma::RepairImage& image) override;
    vma::Status release(int twin, const vma::RepairImage& image) override;
    vma::Status watch(const vma::broker::Watch& watch, vma::Fds& fds) override;
    vma::Status hold(const vma::broker::HeldList& list, vma::Fds& fds) override;
    void drop(const vma::broker::HeldList& list) override;
    void leaving(bool leaves) override { leaving_ = leaves; }
    vma::Status open_ring(const vma::broker::OpenRing& request,
                          vma::broker::OpenedRing& out) override;
    vma::Status show_ring(const vma::broker::ShowRing& ring, int doorbell) override;
    bool has_address(const vma::IpAddr& address) override;
    vma::Status steer(const vma::broker::Steer& flow) override;
    void unsteer(const vma::broker::Steer& flow) override;
    vma::Status share(vma::Fds& fds) override;
    vma::Status publish(const vma::Endpoint& local) override;

  private:
    struct KeptRing {
        uint32_t slot = 0, token = 0;
        int ifindex = 0;
        uint32_t bytes = 0;
    };

    Client(int session, int pidfd, Peer peer, bool trusted, const Policy& policy,
           const Namespace& where, Ledger& ledger, Sharing* sharing);
    void keep_ring(const KeptRing& ring);
    const KeptRing* ring(uint32_t slot) const;
    const Allowance& allowance() const { return policy_.of(peer_.user, peer_.groups, where_); }
    bool may_have_ring(int ifindex, uint32_t bytes);
    bool may_steer(uint16_t port);
    // EDQUOT, and a line in the log, once.
    vma::Status denied(const std::string& what);
    vma::Status denied_ring(int ifindex);
    Fd session_, pidfd_;
    const Peer peer_;
    const Policy& policy_;
    const Namespace& where_;
    bool told_ = false;  // that something was denied
    Ledger& ledger_;
    Ledger::Account& account_;  // there
    Sharing* const sharing_;
    const uint32_t number_;  // there
    bool joined_ = false;
    bool leaving_ = false;
    vma::broker::Dispatcher dispatcher_;
    Estate estate_;
    std::vector<KeptRing> rings_;
};

// The hook of the broker's network namespace, with links on interface `ifindex`. Null: there is none to share.
vma::Hook* hook_on(int ifindex);

}  // namespace vmad
