#include "vmad/server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <syslog.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <unordered_map>

#include "base/clock.h"
#include "base/sys.h"
#include "broker/channel.h"
#include "dev/packet/interfaces.h"
#include "engine/bereaved.h"
#include "vmad/client.h"
#include "vmad/patience.h"
#include "vmad/registry.h"
#include "vmad/rescues.h"
#include "vmad/socket_facts.h"
#include "vmad/workers.h"

namespace vmad {
namespace {

constexpr size_t kMostClients = 1024;
constexpr size_t kMostDoors = 1024;
// Of the doors and clients of a host one user has at most so many, root apart: the others have some left.
constexpr unsigned kMostOfUser = 256;
constexpr unsigned kMessagesPerTurn = 64;  // of one client, before others have their turn
constexpr int kSweepMs = 1000;

// Of the host's own clients.
class HostSharing final : public Sharing {
  public:
    explicit HostSharing(Registry& registry) : registry_(registry) {}
    vma::Status join(uint32_t client, Fd link, uid_t user, const std::string& share) override {
        const uint64_t cookie = netns_cookie_of(link.get());
        return registry_.join(client, std::move(link), cookie, user, share);
    }
    vma::Status publish(uint32_t client, const vma::Endpoint& local) override {
        return registry_.publish(client, local);
    }

  private:
    Registry& registry_;
};

// Of a worker's: they go to the daemon.
class WorkerSharing final : public Sharing {
  public:
    explicit WorkerSharing(const Fd& control) : control_(control) {}
    vma::Status join(uint32_t client, Fd link, uid_t user, const std::string& share) override {
        WorkerSays said;
        said.kind = WorkerSays::joins;
        said.client = client;
        said.user = user;
        if (share.size() >= sizeof said.share) return vma::Errno{EINVAL};
        std::memcpy(said.share, share.data(), share.size());
        const int fd = link.get();
        return tell(said, {&fd, 1});
    }
    vma::Status publish(uint32_t client, const vma::Endpoint& local) override {
        WorkerSays said;
        said.kind = WorkerSays::publishes;
        said.client = client;
        said.address = local.addr.v4_host();
        said.port = local.port;
        return tell(said, {});
    }

  private:
    vma::Status tell(const WorkerSays& said, std::span<const int> fds) {
        const iovec part{const_cast<WorkerSays*>(&said), sizeof said};
        return vma::send_with_fds(control_.get(), {&part, 1}, fds);
    }
    const Fd& control_;
};

class Server {
  public:
    Server() : poll_(vma::sys::epoll_create1(EPOLL_CLOEXEC)) { add(rescues_.fd(), kRescues, 0); }
    // False: it cannot be read, and the log says why; the rules stay as they were.
    bool read_policy(const std::string& file);
    bool listen_on(int socket);
    // Doors come by this socket, from the listener in another process.
    bool work_for(int control, const Namespace& where);
    bool add_door(Fd door, uid_t user);
    int run();

  private:
    enum Kind : uint32_t {
        kListener,
        kReload,
        kDoor,
        kSession,
        kDeath,
        kRescues,
        kWorkers,
        kControl,
        kRegistry
    };
    // What is held up in its life is that user's doing. It may end with the end of his doors and sessions.
    class Blame {
      public:
        Blame(Server& server, uid_t user) : server_(server), user_(user), before_(held_up()) {}
        ~Blame();
        Blame(const Blame&) = delete;
        Blame& operator=(const Blame&) = delete;

      private:
        Server& server_;
        const uid_t user_;
        const unsigned before_;
    };

    struct Door {
        Fd socket;
        uid_t user;
    };
    static uint64_t tag(Kind kind, uint32_t id) { return uint64_t(kind) << 32 | id; }
    bool add(int fd, Kind kind, uint32_t id);
    void reload();
    void policy_has_changed();
    void arrive();
    void pass_to_worker(int door);
    void admit(Fd door);
    void control();
    bool of_host() const { return listener_.valid() || control_.valid(); }
    bool has_work() const {
        return !doors_.empty() || !clients_.empty() || !rescues_.empty() || !bereaved_.empty();
    }
    Sharing* sharing();
    void lose_patience(uid_t user, unsigned times);
    void knock(uint32_t id);
    unsigned clients_of(uid_t user) const;
    void session(uint32_t id);
    void death(uint32_t id);
    void end(uint32_t id, bool rescue);
    void be_alone();

    Policy policy_;    // its clients refer to it
    Namespace where_;  // and to this
    Ledger ledger_;    // and this
    std::string policy_file_;
    Fd poll_, listener_, hangups_, control_;
    uint64_t cookie_ = 0;  // of the namespace that it serves
    Registry registry_;
    HostSharing host_sharing_{registry_};
    WorkerSharing worker_sharing_{control_};
    Workers workers_;
    WorkerSays got_;         // doors, by control_
    bool said_idle_ = true;  // since the last of them
    uint32_t next_ = 1;
    std::unordered_map<uint32_t, Door> doors_;
    std::unordered_map<uint32_t, std::unique_ptr<Client>> clients_;
    Patience patience_;
    Rescues rescues_;
    vma::Bereaved bereaved_;
};

bool Server::add(int fd, Kind kind, uint32_t id) {
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = tag(kind, id);
    return vma::sys::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, fd, &e) == 0;
}

bool Server::read_policy(const std::string& file) {
    std::string why;
    policy_file_ = file;
    if (file.empty() || policy_.read(file, &why)) return true;
    syslog(LOG_ERR, "%s", why.c_str());
    return false;
}

bool Server::listen_on(int socket) {
    sigset_t hangup;
    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP);
    sigprocmask(SIG_BLOCK, &hangup, nullptr);
    hangups_ = Fd(signalfd(-1, &hangup, SFD_CLOEXEC | SFD_NONBLOCK));
    listener_ = Fd(socket);
    cookie_ = own_netns_cookie();
    return add(socket, kListener, 0) && add(hangups_.get(), kReload, 0) &&
           add(workers_.fd(), kWorkers, 0) && add(registry_.fd(), kRegistry, 0);
}

bool Server::work_for(int control, const Namespace& where) {
    control_ = Fd(control);
    where_ = where;
    return add(control, kControl, 0);
}

void Server::reload() {
    signalfd_siginfo which;
    while (vma::sys::read(hangups_.get(), &which, sizeof which) > 0) {
    }
    policy_has_changed();
}

void Server::policy_has_changed() {
    if (!read_policy(policy_file_)) return;
    syslog(LOG_NOTICE, "the policy has been read again");
    workers_.reload();
    // They join anew, after that: who may meet whom is another question now. Connections go on.
    registry_.clear();
}

bool Server::add_door(Fd door, uid_t user) {
    const uint32_t id = next_++;
    if (!add(door.get(), kDoor, id)) return false;
    doors_.emplace(id, Door{std::move(door), user});
    return true;
}

// A process connects to the host's broker.
void Server::arrive() {
    Fd door = Fd::of_client(int(vma::sys::raw(SYS_accept4, listener_.get(), 0, 0, SOCK_CLOEXEC)));
    if (!door.valid()) return;
    if (netns_cookie_of(door.get()) == cookie_)
        admit(std::move(door));
    else
        pass_to_worker(door.get());
}

void refused(const Peer& who, const std::string& why) {
    syslog(LOG_WARNING, "process %d of user %u is refused: %s", int(who.pid), unsigned(who.user),
           why.c_str());
}

void Server::admit(Fd door) {
    Peer who;
    if (!peer_of(door.get(), who)) return;
    if (patience_.is_over(who.user, vma::monotonic_now()))
        return refused(who, "descriptors of that user cannot be closed");
    unsigned same = 0;
    for (const auto& [id, d] : doors_) same += d.user == who.user;
    if (doors_.size() >= kMostDoors || (who.user != 0 && same >= kMostOfUser))
        refused(who, "too many processes are served");
    else
        add_door(std::move(door), who.user);
}

// He goes on as after the end of a broker.
void Server::lose_patience(uid_t user, unsigned times) {
    if (times == 0 || user == 0 || !of_host() ||
        !patience_.spend(user, times, vma::monotonic_now()))
        return;
    syslog(LOG_WARNING, "user %u is not served for a while: its descriptors cannot be closed",
           unsigned(user));
    std::erase_if(doors_, [&](const auto& entry) { return entry.second.user == user; });
    std::erase_if(clients_, [&](const auto& entry) { return entry.second->user() == user; });
    registry_.end_user(user);
}

Server::Blame::~Blame() { server_.lose_patience(user_, held_up() - before_); }

// The broker of one program knows nobody but that.
Sharing* Server::sharing() {
    if (listener_.valid()) return &host_sharing_;
    return control_.valid() ? &worker_sharing_ : nullptr;
}

void Server::pass_to_worker(int door) {
    Peer who;
    const Fd itself(namespace_of_socket(door));
    Namespace where;
    if (!peer_of(door, who)) return;
    std::string why = "the policy denies it its network namespace";
    if (!itself.valid() || !describe_namespace(itself.get(), where) ||
        policy_.of(who.user, who.groups, where).denied ||
        !workers_.pass(door, who.user, where, itself.get(), policy_file_, &why))
        refused(who, why);
}

// In a worker: a door comes, or the word that the policy has changed, or the end.
void Server::control() {
    uint8_t buffer[1];
    vma::Fds fds;
    const auto n = vma::receive_with_fds(control_.get(), buffer, fds, MSG_CMSG_CLOEXEC);
    if (!n && (n.error() == EAGAIN || n.error() == EINTR)) return;
    if (!n || *n == 0) {
        // Clients find the next one by themselves; who restores something goes on with it.
        control_ = Fd();
        doors_.clear();
        clients_.clear();
        rescues_.forget();
        return;
    }
    if (fds.count() == 0) {
        policy_has_changed();
        return;
    }
    got_.doors++;
    said_idle_ = false;
    admit(Fd::of_client(fds.take(0)));
}

unsigned Server::clients_of(uid_t user) const {
    unsigned count = 0;
    for (const auto& [id, client] : clients_) count += client->user() == user;
    return count;
}

// A process shows up: the end of a session.
void Server::knock(uint32_t id) {
    const auto door = doors_.find(id);
    if (door == doors_.end()) return;
    alignas(8) uint8_t buffer[256];
    const Blame blame(*this, door->second.user);
    vma::Fds fds(close_received);
    const auto n = vma::broker::receive_packet(door->second.socket.get(), buffer, fds);
    if (!n) {
        if (n.error() != EAGAIN && n.error() != EINTR && n.error() != EMSGSIZE) doors_.erase(door);
        return;
    }
    if (*n == 0) {
        doors_.erase(door);
        return;
    }
    if (fds.count() != 1 || clients_.size() >= kMostClients) return;
    auto client = Client::make(fds.take(0), !of_host(), policy_, where_, ledger_, sharing());
    if (!client) return;
    if (of_host() && client->user() != 0 && clients_of(client->user()) >= kMostOfUser) return;
    const uint32_t of = next_++;
    if (!add(client->session(), kSession, of) || !add(client->pidfd(), kDeath, of)) return;
    clients_.emplace(of, std::move(client));
}

void Server::session(uint32_t id) {
    const auto it = clients_.find(id);
    if (it == clients_.end()) return;
    const Blame blame(*this, it->second->user());
    if (it->second->serve(kMessagesPerTurn)) return;
    if (it->second->leaving()) {
        // exec: the memory is gone, and with it who would have closed the connections.
        end(id, true);
        return;
    }
    // It let go of us, or is about to die: the pidfd tells. Until then nothing more is heard of it.
    vma::sys::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, it->second->session(), nullptr);
    if (!it->second->has_estate()) end(id, false);
}

void Server::death(uint32_t id) {
    const auto it = clients_.find(id);
    if (it == clients_.end()) return;
    const Blame blame(*this, it->second->user());
    while (it->second->serve(kMessagesPerTurn)) {  // what it said before it died
        if (!vma::broker::wait_readable(it->second->session(), 0)) break;
    }
    end(id, true);
}

void Server::end(uint32_t id, bool rescue) {
    const auto it = clients_.find(id);
    std::unique_ptr<Client> client = std::move(it->second);
    clients_.erase(it);
    if (rescue) client->bury_rings();
    Estate estate = client->take_estate();
    const pid_t pid = client->pid();
    client.reset();
    if (rescue && !estate.arenas.empty())
        rescues_.start(std::move(estate), pid, [this] { be_alone(); });
}

// In the child that restores connections: whoever waits for the broker's end must not wait for its, too: the clients, the successor at
// the socket, the broker itself.
void Server::be_alone() {
    for (Fd* fd : {&listener_, &poll_, &hangups_, &control_}) *fd = Fd();
    workers_.forget();
    registry_.forget();
    doors_.clear();
    clients_.clear();
}

int Server::run() {
    vma::Instant swept{};
    while (of_host() || has_work()) {
        if (control_.valid() && !said_idle_ && !has_work())
            said_idle_ = vma::sys::write(control_.get(), &got_, sizeof got_) == sizeof got_;
        epoll_event events[32];
        // Clients without privileges cannot follow new interfaces, nor tell which rings are of dead processes.
        bool weak = false;
        for (const auto& [id, client] : clients_) weak = weak || !client->trusted();
        const int n = vma::sys::epoll_wait(poll_.get(), events, 32,
                                           weak || !bereaved_.empty() ? kSweepMs : -1);
        // Also while requests keep coming.
        if (weak && vma::monotonic_now() - swept >= vma::Duration::millis(kSweepMs)) {
            swept = vma::monotonic_now();
            std::vector<vma::FlowKey> connections;
            vma::Hook::sweep_all(&connections);
            bereaved_.add(connections, swept);
        }
        if (!bereaved_.empty()) bereaved_.turn(vma::monotonic_now());
        for (int i = 0; i < n; i++) {
            const auto id = uint32_t(events[i].data.u64);
            switch (Kind(events[i].data.u64 >> 32)) {
                case kListener:
                    arrive();
                    break;
                case kReload:
                    reload();
                    break;
                case kDoor:
                    knock(id);
                    break;
                case kSession:
                    session(id);
                    break;
                case kDeath:
                    death(id);
                    break;
                case kRescues:
                    rescues_.serve();
                    bereaved_.add(rescues_.take_lost(), vma::monotonic_now());
                    break;
                case kWorkers:
                    workers_.serve(registry_);
                    break;
                case kRegistry:
                    registry_.serve(
                        [this](uid_t user, unsigned times) { lose_patience(user, times); });
                    break;
                case kControl:
                    control();
                    break;
            }
        }
        if (n < 0 && n != -EINTR) return 1;
    }
    return 0;
}

}  // namespace

int serve_program(int door) {
    Server server;
    return server.add_door(Fd(door), 0) ? server.run() : 1;
}

int serve_host(int listener, const std::string& policy) {
    Server server;
    if (!server.read_policy(policy) || !server.listen_on(listener)) return 1;
    syslog(LOG_NOTICE, "serving");
    return server.run();
}

int serve_namespace(int control, const std::string& policy) {
    Server server;
    Namespace where;
    const Fd itself(vma::open_namespace());
    if (!itself.valid() || !describe_namespace(itself.get(), where) ||
        !server.read_policy(policy) || !server.work_for(control, where))
        return 1;
    return server.run();
}

}  // namespace vmad
