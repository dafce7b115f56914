// share_thief ADDRESS PORT SOCKET: a process of a container that wants the streams of others (test_vmad_share.py). It joins those who
// share memory, publishes ADDRESS and PORT, which its own network has, too, and waits until somebody who is connected to the true owner
// offers his connection. Then it makes a connection of the same name in its own network, which has both addresses, and says that it is
// that one. SOCKET: the number of a unix socket of another network namespace. Prints what was granted
// wrongly, and "all refused" if nothing was.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/descriptor_message.h"
#include "broker/client.h"
#include "dev/shm/handshake.h"
#include "dev/shm/introduction.h"
#include "engine/salvage.h"
#include "engine/shm_peers.h"

namespace {

using namespace vma;
using shm::LinkMessage;
using shm::LinkWord;

constexpr int kPatienceMs = 10'000;
int g_wrong = 0;

void expect(const char* what, int error, int wanted) {
    printf("%s: %d (%s)\n", what, error, strerror(error));
    if (error == wanted) return;
    printf("WRONG: %s: %d wanted\n", what, wanted);
    g_wrong++;
}

[[noreturn]] void give_up(const char* what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(2);
}

IpAddr address_of(const char* text) {
    in_addr address;
    if (inet_pton(AF_INET, text, &address) != 1) exit(2);
    return IpAddr::v4(ntohl(address.s_addr));
}

void wait_for(int fd) {
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, kPatienceMs) != 1) give_up("nothing comes");
}

// The next message of the link, and what came with it.
LinkMessage hear(int link, int* passed) {
    wait_for(link);
    LinkMessage m;
    Fds fds;
    const auto n =
        receive_with_fds(link, {reinterpret_cast<uint8_t*>(&m), sizeof m}, fds, MSG_CMSG_CLOEXEC);
    if (!n || *n != sizeof m) give_up("the link has ended");
    *passed = fds.take(0);
    return m;
}

int ask(int link, LinkWord word, uint64_t introduction, int socket) {
    static uint32_t serial = 0;
    LinkMessage m;
    m.word = word;
    m.introduction = introduction;
    m.serial = ++serial;
    const iovec part{&m, sizeof m};
    if (!send_with_fds(link, {&part, 1}, {&socket, 1})) give_up("the link has ended");
    int passed;
    const LinkMessage answer = hear(link, &passed);
    return answer.word == LinkWord::answer && answer.serial == serial ? answer.error : EPROTO;
}

int tcp_at(const Endpoint& name) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    const sockaddr_in in = name.to_sockaddr_in();
    if (bind(fd, reinterpret_cast<const sockaddr*>(&in), sizeof in) != 0) give_up("bind");
    return fd;
}

// A connection with these names, made in this network; its end at `local`.
int impostor(const Endpoint& local, const Endpoint& remote) {
    const int listener = tcp_at(local), client = tcp_at(remote);
    const sockaddr_in in = local.to_sockaddr_in();
    if (listen(listener, 1) != 0 ||
        connect(client, reinterpret_cast<const sockaddr*>(&in), sizeof in) != 0)
        give_up("connect");
    return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
}

ShmMessage hear_peer(int channel) {
    wait_for(channel);
    ShmMessage m;
    if (recv(channel, &m, sizeof m, 0) != sizeof m) give_up("the neighbour has ended");
    return m;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    const Endpoint mine{address_of(argv[1]), uint16_t(atoi(argv[2]))};
    broker::ClientConfig config;
    config.layout = layout_identity();
    broker::configure(config);
    if (!broker::start()) return 2;

    expect("publish before anything", broker::publish(mine).error(), ENOLINK);
    expect("a link of another namespace", broker::share(atoi(argv[3])).error(), EXDEV);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return 2;
    expect("join", broker::share(pair[1]).error(), 0);
    close(pair[1]);
    const int link = pair[0];
    expect("what no interface has", broker::publish({IpAddr::v4(10, 9, 0, 77), mine.port}).error(),
           EADDRNOTAVAIL);
    const int plain = tcp_at({mine.addr, uint16_t(mine.port + 1)});
    expect("no such introduction", ask(link, LinkWord::prove, 1, plain), ENOENT);
    expect("publish", broker::publish(mine).error(), 0);
    if (g_wrong) return 1;
    printf("waiting\n");
    fflush(stdout);

    int channel;
    const LinkMessage met = hear(link, &channel);
    if (met.word != LinkWord::met || channel < 0) give_up("no introduction");
    shm::Self self;
    self.id.words[0] = 4711;
    self.namespace_cookie = met.introduction;
    shm::Joiner joiner;
    std::string why;
    wait_for(channel);
    if (!joiner.hello(channel, self, &why)) give_up(why.c_str());
    auto parts = joiner.welcome(channel, &why);
    if (!parts) give_up(why.c_str());
    const ShmMessage offer = hear_peer(channel);
    if (offer.word != ShmWord::offer) give_up("no offer");
    const FlowTuple tuple = offer.tuple();
    expect("the offer is of the address that was published", tuple.local == mine ? 0 : 1, 0);

    expect("no connection", ask(link, LinkWord::prove, met.introduction, plain), EINVAL);
    expect("no socket", ask(link, LinkWord::prove, met.introduction, STDIN_FILENO), EINVAL);
    const int forged = impostor(tuple.local, tuple.remote);
    expect("a connection of the same name", ask(link, LinkWord::prove, met.introduction, forged),
           EACCES);
    expect("once more", ask(link, LinkWord::prove, met.introduction, forged), EACCES);
    expect("shown, then proven to oneself",
           ask(link, LinkWord::show, met.introduction, forged) |
               (ask(link, LinkWord::prove, met.introduction, forged) ^ EACCES),
           0);
    ShmMessage accept = ShmMessage::about(ShmWord::accept, tuple);
    accept.window = 65536;
    if (send(channel, &accept, sizeof accept, MSG_NOSIGNAL) != sizeof accept) give_up("accept");
    expect("accepted all the same", int(hear_peer(channel).word), int(ShmWord::refuse));
    parts->close_all();
    printf("%s\n", g_wrong ? "something was granted" : "all refused");
    return g_wrong != 0;
}
