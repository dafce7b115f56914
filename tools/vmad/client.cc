#include "vmad/client.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/socket.h>
#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/sys.h"
#include "dev/packet/bpf_calls.h"
#include "dev/packet/layout.h"
#include "dev/packet/packet_ring.h"
#include "engine/kernel_policy.h"
#include "engine/network_monitor.h"
#include "engine/salvage.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace vmad {
namespace {

constexpr unsigned kNetAdmin = 12;
constexpr size_t kMostLinks = 64;
static_assert(vma::broker::kSlots == VMA_SLOTS && vma::broker::kGates == VMA_GATES);

// A process as it is now: has it CAP_NET_ADMIN, and in our user namespace?
bool is_privileged(pid_t pid) {
    char path[64], theirs[64] = {}, ours[64] = {};
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    const ssize_t n = readlink(path, theirs, sizeof theirs - 1);
    if (n > 0 && readlink("/proc/self/ns/user", ours, sizeof ours - 1) > 0 &&
        std::strcmp(theirs, ours) != 0)
        return false;
    // Who may not even look at it (the process has other capabilities than we) reads its status all the same.
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE* f = fopen(path, "re");
    if (f == nullptr) return false;
    char line[256];
    unsigned long long effective = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "CapEff: %llx", &effective) == 1) break;
    fclose(f);
    return effective & (1ull << kNetAdmin);
}

vma::FlowKey key_of(const vma::broker::Steer& flow) {
    vma::FlowKey key;
    key.local = vma::broker::from_wire(flow.local);
    if (flow.remote.port) key.remote = vma::broker::from_wire(flow.remote);
    key.protocol = flow.protocol;
    return key;
}

// What the network and the kernel's policy of our namespace say. A client without privileges may not read all of that.
class KernelView {
  public:
    // Brought up to date. Null: there is no netlink.
    static KernelView* get() {
        static KernelView policy;
        if (!policy.monitor_) {
            auto monitor = vma::NetworkMonitor::of_this_namespace();
            if (!monitor) return nullptr;
            policy.monitor_ = *monitor;
            auto opened = vma::KernelPolicy::open();
            if (opened) policy.kernel_ = std::move(*opened);
        }
        policy.monitor_->process();
        if (policy.kernel_) policy.kernel_->process();
        return &policy;
    }
    auto view() const { return monitor_->view(); }
    bool allows(const vma::FlowKey& key, int ifindex) const {
        if (!kernel_) return true;
        vma::FlowQuery query;
        query.protocol = key.protocol;
        query.local = key.local;
        query.remote = key.remote;
        query.ifindex = ifindex;
        // Who opens a TCP connection cannot be told from its flow.
        if (key.protocol == IPPROTO_TCP && !key.connected()) query.role = vma::FlowRole::passive;
        return kernel_->check(query, *view()) == vma::Reason::none;
    }

  private:
    std::shared_ptr<vma::NetworkMonitor> monitor_;
    std::unique_ptr<vma::KernelPolicy> kernel_;
};

// Of a ring that another broker has lent.
uint32_t ring_bytes(const vma::Hook& hook, uint32_t slot) {
    const Fd ring(hook.data_ring(slot));
    vma::bpf::MapInfo map;
    return ring.valid() && vma::bpf::map_info(ring.get(), map) == 0 ? map.entries : 0;
}

int peer_pidfd(int session, pid_t pid) {
    int fd = -1;
    socklen_t len = sizeof fd;
    if (vma::sys::getsockopt(session, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0) return fd;
    return int(vma::sys::raw(434 /* pidfd_open */, pid, 0));
}

uint32_t next_number() {
    static uint32_t last = 0;
    return ++last;
}

}  // namespace

Client::Client(int session, int pidfd, Peer peer, bool trusted, const Policy& policy,
               const Namespace& where, Ledger& ledger, Sharing* sharing)
    : session_(Fd::of_client(session)),
      pidfd_(pidfd),
      peer_(std::move(peer)),
      policy_(policy),
      where_(where),
      ledger_(ledger),
      account_(ledger.begin(peer_.pid, vma::monotonic_now())),
      sharing_(sharing),
      number_(next_number()),
      dispatcher_(*this, vma::layout_identity(), trusted) {}

Client::~Client() {
    for (const KeptRing& r : rings_) account_.rings--, account_.memory -= r.bytes;
    ledger_.end(peer_.pid, vma::monotonic_now());
}

void Client::keep_ring(const KeptRing& ring) {
    rings_.push_back(ring);
    account_.rings++;
    account_.memory += ring.bytes;
}

std::unique_ptr<Client> Client::make(int session, bool may_be_trusted, const Policy& policy,
                                     const Namespace& where, Ledger& ledger, Sharing* sharing) {
    const Fd owned = Fd::of_client(session);
    Peer peer;
    int type = 0;
    socklen_t type_len = sizeof type;
    if (vma::sys::getsockopt(session, SOL_SOCKET, SO_TYPE, &type, &type_len) != 0 ||
        type != SOCK_SEQPACKET || !peer_of(session, peer))
        return nullptr;
    const int pidfd = peer_pidfd(session, peer.pid);
    if (pidfd < 0) return nullptr;
    const bool trusted = may_be_trusted && is_privileged(peer.pid);
    const int mine = vma::sys::fcntl(owned.get(), F_DUPFD_CLOEXEC, 3);
    if (mine < 0) {
        vma::sys::close(pidfd);
        return nullptr;
    }
    return std::unique_ptr<Client>(
        new Client(mine, pidfd, std::move(peer), trusted, policy, where, ledger, sharing));
}

vma::Status Client::denied(const std::string& what) {
    if (!std::exchange(told_, true))
        syslog(LOG_NOTICE, "process %d of user %u: the policy denies it %s", int(peer_.pid),
               unsigned(peer_.user), what.c_str());
    return vma::Errno{EDQUOT};
}

vma::Status Client::denied_ring(int ifindex) {
    char name[IF_NAMESIZE] = "?";
    if_indextoname(unsigned(ifindex), name);
    return denied(std::string("a ring on interface ") + name);
}

bool Client::may_have_ring(int ifindex, uint32_t bytes) {
    const Allowance& allowed = allowance();
    const uint64_t memory = account_.memory + bytes;
    char name[IF_NAMESIZE] = {};
    return !allowed.denied && account_.rings < allowed.rings && memory <= allowed.memory &&
           (allowed.interfaces.empty() ||
            (if_indextoname(unsigned(ifindex), name) && allowed.has_interface(name)));
}

bool Client::may_steer(uint16_t port) {
    const Allowance& allowed = allowance();
    return !allowed.denied && allowed.has_port(port) &&
           account_.admits_flow(allowed.flows, vma::monotonic_now());
}

bool Client::serve(unsigned most) {
    alignas(8) static uint8_t buffer[vma::broker::kMostMessage];
    for (unsigned i = 0; i < most; i++) {
        vma::Fds fds(close_received);
        const auto n = vma::broker::receive_packet(session_.get(), buffer, fds);
        if (!n) {
            if (n.error() == EINTR) continue;
            return n.error() == EAGAIN;
        }
        if (*n == 0) return false;
        vma::broker::Dispatcher::Answer answer;
        if (!dispatcher_.message({buffer, *n}, fds, answer)) return false;
        // The client may close its own as soon as it is answered, and then no other must be left.
        fds.close_all();
        if (!answer.send) continue;
        const auto sent = vma::broker::send_message(
            session_.get(), vma::broker::Op::reply, answer.serial, &answer.reply,
            sizeof answer.reply, {answer.fds, answer.fd_count});
        for (unsigned k = 0; k < answer.fd_count; k++) vma::sys::close(answer.fds[k]);
        if (!sent) return false;  // who does not read its answers gets none
    }
    return true;
}

Estate Client::take_estate() {
    estate_.trusted = dispatcher_.trusted();
    estate_.proven.assign(dispatcher_.proven().begin(), dispatcher_.proven().end());
    return std::move(estate_);
}

vma::broker::SocketFacts Client::inspect(int fd) { return socket_facts(fd); }

uint64_t Client::netns_cookie() {
    static const uint64_t cookie = own_netns_cookie();
    return cookie;
}

vma::Status Client::bind(int fd, const vma::Endpoint& local) {
    const sockaddr_in name = local.to_sockaddr_in();
    const int r = vma::sys::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name);
    if (r < 0) return vma::Errno{-r};
    return {};
}

vma::Result<vma::ByteView> Client::read_queues(int memfd, uint32_t bytes) {
    static std::vector<uint8_t> memory;
    if (!is_memory_file(memfd)) return vma::Errno{EINVAL};
    memory.resize(bytes);
    size_t done = 0;
    while (done < bytes) {
        const long n = vma::sys::raw(SYS_pread64, memfd, vma::sys::ptr(memory.data() + done),
                                     long(bytes - done), long(done));
        if (n <= 0) return vma::Errno{n == 0 ? EINVAL : int(-n)};
        done += size_t(n);
    }
    return vma::ByteView(memory);
}

vma::Status Client::restore(int twin, const vma::tcp::Snapshot& snapshot,
                            const vma::RepairQueues& queues, vma::RepairOptions& saved) {
    return vma::repair_restore(twin, snapshot, queues, saved);
}
void Client::cancel(int twin, const vma::RepairOptions& saved) { vma::repair_cancel(twin, saved); }
vma::Status Client::finish(int twin, const vma::tcp::Snapshot& snapshot,
                           const vma::RepairQueues& queues, const vma::RepairOptions& saved) {
    return vma::repair_finish(twin, snapshot, queues, saved);
}

vma::Status Client::checkpoint(int twin, vma::RepairImage& image, int& memfd) {
    std::vector<uint8_t> room(
        std::min<size_t>(vma::repair_room(twin), 3 * size_t(vma::broker::kMostQueueBytes)));
    const vma::Status done = vma::repair_checkpoint(twin, image, room);
    if (!done) return done;
    const size_t total = size_t(image.to_send) + image.snapshot.unread;
    if (total == 0) return {};
    memfd = int(vma::sys::raw(SYS_memfd_create, vma::sys::ptr("vma-queues"), 1));
    size_t written = 0;
    while (memfd >= 0 && written < total) {
        const ssize_t n = vma::sys::write(memfd, room.data() + written, total - written);
        if (n <= 0) break;
        written += size_t(n);
    }
    if (written == total) return {};
    if (memfd >= 0) vma::sys::close(memfd);
    memfd = -1;
    vma::repair_resume(twin, image);
    return vma::Errno{ENOBUFS};
}
void Client::resume(int twin, const vma::RepairImage& image) { vma::repair_resume(twin, image); }
vma::Status Client::release(int twin, const vma::RepairImage& image) {
    return vma::repair_release(twin, image);
}

vma::Hook* hook_on(int ifindex) {
    static vma::Hook* hook = nullptr;
    static int linked[kMostLinks];
    static size_t links = 0;
    for (size_t i = 0; i < links; i++)
        if (linked[i] == ifindex) return hook;
    const auto opened = vma::Hook::open(ifindex, nullptr);
    if (!opened) return hook;
    if (!(*opened)->shared()) {
        // Somebody has a hook for himself alone: what is left of him cannot be taken over.
        (*opened)->close();
        return hook;
    }
    hook = *opened;
    if (links < kMostLinks) linked[links++] = ifindex;
    return hook;
}

vma::Status Client::watch(const vma::broker::Watch& w, vma::Fds& fds) {
    if (estate_.arenas.size() >= kMostArenas) return vma::Errno{ENOSPC};
    if (!is_memory_file(fds[0])) return vma::Errno{EINVAL};
    WatchedArena a;
    a.facts = w;
    a.clock_ahead = clock_ahead(peer_.pid);
    vma::Hook* hook = hook_on(w.ifindex);
    if (hook == nullptr || !hook->owns(w.slot, w.token)) return vma::Errno{EACCES};
    // While somebody has the token, nobody takes the dead process's slot for one whose owner is gone.
    const int token = vma::Hook::token_of(w.token);
    if (token < 0) return vma::Errno{-token};
    a.token = Fd(token);
    if (w.ring_data) a.data_ring = Fd(hook->data_ring(w.slot));
    a.memfd = Fd(fds.take(0));
    estate_.arenas.push_back(std::move(a));
    // Now, because the process may not be able to when it needs it.
    return hook->guard();
}

const Client::KeptRing* Client::ring(uint32_t slot) const {
    for (const KeptRing& r : rings_)
        if (r.slot == slot) return &r;
    return nullptr;
}

vma::Status Client::open_ring(const vma::broker::OpenRing& request, vma::broker::OpenedRing& out) {
    if (!may_have_ring(request.ifindex, request.bytes)) return denied_ring(request.ifindex);
    vma::Hook* const hook = hook_on(request.ifindex);
    if (hook == nullptr) return vma::Errno{EOPNOTSUPP};
    auto lent = vma::lend_packet_ring(*hook, request.ifindex, request.bytes);
    if (!lent) return vma::Errno{lent.error()};
    out.fds[vma::broker::kDataRing] = lent->data;
    out.fds[vma::broker::kDoorbell] = lent->bell;
    out.fds[vma::broker::kOwnerPage] = lent->owner;
    out.fds[vma::broker::kLifeToken] = lent->token;
    out.fds[vma::broker::kTransmitter] = lent->transmit;
    out.fds[vma::broker::kIngressLink] = lent->ingress;
    out.fds[vma::broker::kEgressLink] = lent->egress;
    out.slot = lent->slot;
    out.token = lent->token_id;
    keep_ring({lent->slot, lent->token_id, request.ifindex, request.bytes});
    return {};
}

vma::Status Client::show_ring(const vma::broker::ShowRing& r, int doorbell) {
    vma::Hook* const hook = hook_on(r.ifindex);
    vma::bpf::MapInfo map;
    if (!may_have_ring(r.ifindex, 0)) return denied_ring(r.ifindex);
    if (hook == nullptr || vma::bpf::map_info(doorbell, map) < 0 || !hook->owns(r.slot, r.token) ||
        !hook->has_doorbell(r.slot, map.id))
        return vma::Errno{EACCES};
    keep_ring({r.slot, r.token, r.ifindex, ring_bytes(*hook, r.slot)});
    return {};
}

bool Client::has_address(const vma::IpAddr& address) {
    const auto* policy = KernelView::get();
    return policy != nullptr && policy->view()->is_local(address);
}

vma::Status Client::steer(const vma::broker::Steer& flow) {
    const KeptRing* const kept = ring(flow.slot);
    vma::Hook* const hook = kept ? hook_on(kept->ifindex) : nullptr;
    if (hook == nullptr) return vma::Errno{EACCES};
    const vma::FlowKey key = key_of(flow);
    if (!may_steer(key.local.port))
        return denied("flows of port " + std::to_string(key.local.port));
    if (!flow.ignore_firewall && !KernelView::get()->allows(key, kept->ifindex))
        return vma::Errno{EKEYREJECTED};
    const vma::FlowGate gate{flow.gate, flow.gate_value};
    return hook->steer(flow.slot, key, &gate);
}

void Client::unsteer(const vma::broker::Steer& flow) {
    const KeptRing* const kept = ring(flow.slot);
    vma::Hook* const hook = kept ? hook_on(kept->ifindex) : nullptr;
    const vma::FlowGate gate{flow.gate, flow.gate_value};
    if (hook) (void)hook->unsteer(flow.slot, key_of(flow), &gate);
}

void Client::bury_rings() {
    for (const KeptRing& r : rings_) {
        bool rescued = false;
        for (const WatchedArena& a : estate_.arenas) rescued = rescued || a.facts.slot == r.slot;
        if (rescued) continue;
        if (vma::Hook* hook = hook_on(r.ifindex)) hook->bury(r.slot, r.token);
    }
}

vma::Status Client::share(vma::Fds& fds) {
    const Allowance& allowed = allowance();
    if (sharing_ == nullptr || allowed.denied || allowed.share.empty()) return vma::Errno{EDQUOT};
    int type = 0;
    socklen_t len = sizeof type;
    // A link of another namespace would say that the process is there.
    if (vma::sys::getsockopt(fds[0], SOL_SOCKET, SO_TYPE, &type, &len) != 0 ||
        type != SOCK_SEQPACKET || netns_cookie_of(fds[0]) != netns_cookie())
        return vma::Errno{EXDEV};
    const vma::Status done =
        sharing_->join(number_, Fd::of_client(fds.take(0)), peer_.user, allowed.share);
    joined_ = done.ok();
    return done;
}

vma::Status Client::publish(const vma::Endpoint& local) {
    const Allowance& allowed = allowance();
    if (!joined_) return vma::Errno{ENOLINK};
    if (allowed.denied || !allowed.has_port(local.port)) return vma::Errno{EDQUOT};
    return sharing_->publish(number_, local);
}

vma::Status Client::hold(const vma::broker::HeldList& list, vma::Fds& fds) {
    for (uint32_t i = 0; i < list.count; i++) {
        const vma::broker::Held& h = list.items[i];
        bool known = false;
        for (const WatchedArena& a : estate_.arenas)
            known = known || (h.connection - a.facts.arena < a.facts.reserve &&
                              h.share - a.facts.arena < a.facts.reserve);
        if (!known) return vma::Errno{EINVAL};
        if (estate_.held.size() >= kMostHeld) return vma::Errno{ENOSPC};
        HeldTwin twin;
        twin.facts = h;
        twin.twin = Fd::of_client(fds.take(i));
        estate_.held.push_back(std::move(twin));
    }
    return {};
}

void Client::drop(const vma::broker::HeldList& list) {
    for (uint32_t i = 0; i < list.count; i++) {
        auto& held = estate_.held;
        for (size_t k = 0; k < held.size(); k++) {
            const vma::broker::Held& h = held[k].facts;
            if (h.connection != list.items[i].connection || !(h.local == list.items[i].local) ||
                !(h.remote == list.items[i].remote))
                continue;
            held[k] = std::move(held.back());
            held.pop_back();
            break;
        }
    }
}

}  // namespace vmad
