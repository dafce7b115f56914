#include "vmad/registry.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <syslog.h>

#include <algorithm>
#include <utility>

#include "base/descriptor_message.h"
#include "base/sys.h"
#include "vmad/socket_facts.h"

namespace vmad {
namespace {

using vma::shm::LinkMessage;
using vma::shm::LinkWord;

constexpr unsigned kMessagesPerTurn = 64;  // of one member, before others have their turn

bool tell(int link, const LinkMessage& message, int passed = -1) {
    const iovec part{const_cast<LinkMessage*>(&message), sizeof message};
    return vma::send_with_fds(link, {&part, 1}, {&passed, passed >= 0 ? size_t(1) : 0}).ok();
}

bool is_question(const LinkMessage& m, size_t bytes, unsigned fds) {
    if (bytes != sizeof m || m.magic != LinkMessage::kMagic || m.version != 1 || m.zero != 0)
        return false;
    if (m.word == LinkWord::seek) return fds == 0 && m.port != 0;
    if (m.word == LinkWord::forget) return fds == 0;
    return (m.word == LinkWord::show || m.word == LinkWord::prove) && fds == 1;
}

}  // namespace

Registry::Registry(Read read)
    : read_(std::move(read)), poll_(vma::sys::epoll_create1(EPOLL_CLOEXEC)) {}

vma::Result<Registry::End> Registry::read_end(int socket) {
    const auto facts = socket_facts(socket);
    if (!facts.tcp || !facts.connected || facts.listening) return vma::Errno{EINVAL};
    if (!facts.local.addr.is_v4() || !facts.remote.addr.is_v4()) return vma::Errno{EAFNOSUPPORT};
    const auto first = vma::repair_first_bytes(socket);
    if (!first) return vma::Errno{first.error()};
    return End{facts.netns_cookie, facts.local, facts.remote, *first};
}

vma::Status Registry::join(uint64_t id, Fd link, uint64_t netns_cookie, uid_t user,
                           const std::string& share) {
    end(id);
    size_t same = 0;
    for (const auto& [other, m] : members_) same += m.user == user;
    if (members_.size() >= kMost || (user != 0 && same >= kMostOfUser)) return vma::Errno{ENOSPC};
    epoll_event news{};
    news.events = EPOLLIN;
    news.data.u64 = id;
    if (vma::sys::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, link.get(), &news) != 0)
        return vma::Errno{EINVAL};
    Member member;
    member.netns_cookie = netns_cookie;
    member.link = std::move(link);
    member.user = user;
    member.share = share;
    members_.emplace(id, std::move(member));
    return {};
}

vma::Status Registry::publish(uint64_t id, const vma::Endpoint& local) {
    const auto it = members_.find(id);
    if (it == members_.end()) return vma::Errno{ENOLINK};
    auto& published = it->second.published;
    if (std::find(published.begin(), published.end(), local) != published.end()) return {};
    if (published.size() >= kMostPublished) return vma::Errno{ENOSPC};
    published.push_back(local);
    return {};
}

void Registry::end(uint64_t id) {
    const auto it = members_.find(id);
    if (it == members_.end()) return;
    // Whoever has it besides, it is heard no more.
    vma::sys::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, it->second.link.get(), nullptr);
    members_.erase(it);
    std::erase_if(introductions_, [&](const auto& entry) {
        return entry.second.sides[0] == id || entry.second.sides[1] == id;
    });
}

void Registry::end_user(uid_t user) {
    std::vector<uint64_t> his;
    for (const auto& [id, m] : members_)
        if (m.user == user) his.push_back(id);
    for (const uint64_t id : his) end(id);
}

void Registry::clear() {
    introductions_.clear();
    while (!members_.empty()) end(members_.begin()->first);
}

void Registry::forget() {
    // Before the rest: what is watched is the parent's to say.
    poll_ = Fd();
    clear();
}

bool Registry::introduce(uint64_t seeker, uint64_t found, const vma::Endpoint& where) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return false;
    const Fd ends[2] = {Fd(pair[0]), Fd(pair[1])};
    LinkMessage m;
    m.word = LinkWord::met;
    m.introduction = next_++;
    if (!tell(members_.at(found).link.get(), m, ends[1].get())) return false;
    m.address = where.addr.v4_host();
    m.port = where.port;
    if (!tell(members_.at(seeker).link.get(), m, ends[0].get())) return false;
    Introduction& made = introductions_[m.introduction];
    made.sides[0] = seeker;
    made.sides[1] = found;
    made.where = where;
    counters_.introduced++;
    return true;
}

bool Registry::have_met(uint64_t seeker, uint64_t found, const vma::Endpoint& where) const {
    return std::any_of(introductions_.begin(), introductions_.end(), [&](const auto& entry) {
        const Introduction& i = entry.second;
        return i.sides[0] == seeker && i.sides[1] == found && i.where == where;
    });
}

void Registry::forget(uint64_t id, uint64_t introduction) {
    const auto it = introductions_.find(introduction);
    if (it != introductions_.end() && (it->second.sides[0] == id || it->second.sides[1] == id))
        introductions_.erase(it);
}

int Registry::seek(uint64_t id, const vma::Endpoint& where) {
    const Member& seeker = members_.at(id);
    std::vector<uint64_t> found;
    for (const auto& [other, m] : members_) {
        if (found.size() == kMostFound) break;
        if (m.share == seeker.share && m.netns_cookie != seeker.netns_cookie &&
            std::find(m.published.begin(), m.published.end(), where) != m.published.end() &&
            !have_met(id, other, where))
            found.push_back(other);
    }
    unsigned introduced = 0;
    for (const uint64_t other : found) introduced += introduce(id, other, where);
    return introduced ? 0 : ENOENT;
}

// Its other end has been shown, and is what it must be.
int Registry::prove(Introduction& with, unsigned side, const End& mine) {
    auto& theirs = with.shown[1 - side];
    const auto other = std::find_if(theirs.begin(), theirs.end(), [&](const End& e) {
        return e.local == mine.remote && e.remote == mine.local;
    });
    if (other == theirs.end()) return EACCES;
    const bool fits =
        other->first.sent == mine.first.received && other->first.received == mine.first.sent;
    auto& ours = with.shown[side];
    const auto same = std::find_if(ours.begin(), ours.end(), [&](const End& e) {
        return e.local == mine.local && e.remote == mine.remote;
    });
    // One guess for each time that it is shown; and when both have proven it, neither is needed any more.
    if (!fits || same != ours.end()) theirs.erase(other);
    if (same != ours.end())
        ours.erase(same);
    else if (fits)
        ours.push_back(mine);
    return fits ? 0 : EACCES;
}

int Registry::show(uint64_t id, uint64_t introduction, int socket, bool wants_proof) {
    const auto it = introductions_.find(introduction);
    if (it == introductions_.end()) return ENOENT;
    Introduction& with = it->second;
    if (with.sides[0] != id && with.sides[1] != id) return ENOENT;
    const unsigned side = with.sides[1] == id;
    const auto end = read_(socket);
    if (!end) return end.error();
    if (end->netns_cookie == 0 || end->netns_cookie != members_.at(id).netns_cookie) return EXDEV;
    auto& ours = with.shown[side];
    int result = 0;
    if (wants_proof) {
        result = prove(with, side, *end);
        (result == 0 ? counters_.proven : counters_.refused)++;
    } else {
        std::erase_if(with.shown[1 - side], [&](const End& e) {
            return e.local == end->remote && e.remote == end->local;
        });
        std::erase_if(
            ours, [&](const End& e) { return e.local == end->local && e.remote == end->remote; });
        ours.push_back(*end);
    }
    if (ours.size() > kMostShown) ours.pop_front();
    return result;
}

// False: the link is over, or has nothing more now.
bool Registry::hear(uint64_t id, const std::function<void(uid_t, unsigned)>& blame) {
    const auto it = members_.find(id);
    if (it == members_.end()) return false;
    Member& member = it->second;
    const uid_t user = member.user;
    const unsigned before = held_up();
    LinkMessage m;
    bool goes_on = false;
    {
        vma::Fds fds(close_received);
        const auto n = vma::receive_with_fds(
            member.link.get(), {reinterpret_cast<uint8_t*>(&m), sizeof m}, fds, MSG_CMSG_CLOEXEC);
        if (!n && (n.error() == EAGAIN || n.error() == EINTR)) return false;
        if (n && is_question(m, *n, fds.count()) && m.word == LinkWord::forget) {
            forget(id, m.introduction);
            goes_on = true;
        } else if (n && is_question(m, *n, fds.count())) {
            LinkMessage answer;
            answer.word = LinkWord::answer;
            answer.serial = m.serial;
            answer.error = m.word == LinkWord::seek
                               ? seek(id, m.endpoint())
                               : show(id, m.introduction, fds[0], m.word == LinkWord::prove);
            if (answer.error == EACCES && !std::exchange(member.told, true))
                syslog(LOG_WARNING,
                       "a process of user %u has no proof that it is the other end of a connection",
                       unsigned(user));
            // The process may close its own as soon as it is answered, and then no other must be left.
            fds.close_all();
            goes_on = tell(member.link.get(), answer);
        } else if (!n || *n != 0) {
            counters_.malformed++;
        }
    }
    if (!goes_on) end(id);
    if (const unsigned times = held_up() - before) blame(user, times);
    return goes_on;
}

void Registry::serve(const std::function<void(uid_t, unsigned)>& blame) {
    epoll_event events[16];
    const int n = vma::sys::epoll_wait(poll_.get(), events, 16, 0);
    for (int i = 0; i < n; i++)
        for (unsigned k = 0; k < kMessagesPerTurn && hear(events[i].data.u64, blame); k++) {
        }
}

}  // namespace vmad
