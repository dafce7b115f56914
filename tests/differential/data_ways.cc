// Bytes by other ways than send() and recv(): files, pipes, zero copy; flags of a stream; queues told by ioctl().
#include <net/if.h>
#include <signal.h>
#include <sys/uio.h>
#include <time.h>

#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include "differential/behaviour.h"

namespace {
int memory_file(const std::string& text) {
    const int fd = memfd_create("file", MFD_CLOEXEC);
    const ssize_t n = write(fd, text.data(), text.size());
    lseek(fd, 0, SEEK_SET);
    return n == ssize_t(text.size()) ? fd : -1;
}
void takes_all() {
    const int s = connected();
    SEE(rest(s));
}
void speaks(std::initializer_list<const char*> words) {
    const int s = connected();
    for (const char* word : words) {
        step("speak");
        put(s, word);
    }
    step("over");
}
// A completion of MSG_ZEROCOPY: the range of calls, how it went, or the error.
std::string completion(int s) {
    alignas(cmsghdr) char control[128];
    msghdr m{};
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    if (recvmsg(s, &m, MSG_ERRQUEUE) < 0) return strerrorname_np(errno);
    const cmsghdr* c = CMSG_FIRSTHDR(&m);
    if (c == nullptr) return "no message";
    const auto* e = reinterpret_cast<const sock_extended_err*>(CMSG_DATA(c));
    return "flags " + std::to_string(m.msg_flags) + " " + std::to_string(c->cmsg_level) + "/" +
           std::to_string(c->cmsg_type) + " errno " + std::to_string(e->ee_errno) + " origin " +
           std::to_string(e->ee_origin) + " calls " + std::to_string(e->ee_info) + " to " +
           std::to_string(e->ee_data);
}
}  // namespace

BEHAVIOUR(sendfile_nonblocking, "sendfile() on a full non-blocking socket: a part, then EAGAIN");
void sendfile_nonblocking::a() {
    const int s = connected(), file = memory_file(pattern(16 << 20));
    SEE(set(s, SOL_SOCKET, SO_SNDBUF, 200000));
    nonblocking(s);
    off_t at_byte = 0;
    long n, total = 0;
    while ((n = sendfile(s, file, &at_byte, 16 << 20)) > 0) total += n;
    SEE(strerrorname_np(errno));
    SEE(total == at_byte && total > 0 && total < (16 << 20));
    SEE(lseek(file, 0, SEEK_CUR));
    linger_for(s, 0);
    step("over");
}
void sendfile_nonblocking::b() {
    connected();
    step("over");
}

BEHAVIOUR(sendfile_corners,
          "sendfile(): from a pipe, a directory, a socket; bad offsets; past the end");
void sendfile_corners::a() {
    const int s = connected(), file = memory_file("0123456789");
    int ends[2];
    SEE(pipe(ends));
    SEE(write(ends[1], "piped", 5));
    SEE(sendfile(s, ends[0], nullptr, 5));
    const int folder = open("/proc/self", O_RDONLY | O_DIRECTORY);
    SEE(sendfile(s, folder, nullptr, 5));
    SEE(sendfile(s, s, nullptr, 5));
    off_t at_byte = -1;
    SEE(sendfile(s, file, &at_byte, 5));
    at_byte = 100;
    SEE(sendfile(s, file, &at_byte, 5));
    SEE(long(at_byte));
    at_byte = 8;
    SEE(sendfile(s, file, &at_byte, 5));
    SEE(long(at_byte));
    SEE(sendfile(s, file, nullptr, 0));
    const int write_only = open("/dev/null", O_WRONLY);
    SEE(sendfile(s, write_only, nullptr, 5));
    SEE(sendfile(s, -1, nullptr, 5));
    SEE(sendfile(s, file, nullptr, 1 << 30));
    SEE(shutdown(s, SHUT_WR));
    SEE(sendfile(s, file, nullptr, 5));
    off_t start = 0;
    signal(SIGPIPE, SIG_IGN);
    SEE(sendfile(s, file, &start, 5));
}
void sendfile_corners::b() { takes_all(); }

BEHAVIOUR(sendfile_of_special_files, "sendfile() of /proc and /dev files");
void sendfile_of_special_files::a() {
    const int s = connected();
    const int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_RDONLY);
    SEE(sendfile(s, null, nullptr, 100));
    SEE(sendfile(s, zero, nullptr, 1000));
    const int proc = open("/proc/self/comm", O_RDONLY);
    SEE(sendfile(s, proc, nullptr, 100));
    SEE(shutdown(s, SHUT_WR));
}
void sendfile_of_special_files::b() { takes_all(); }

BEHAVIOUR(sendfile_between_sends,
          "sendfile() between sends with MSG_MORE and under TCP_CORK: the order");
void sendfile_between_sends::a() {
    const int s = connected(), file = memory_file("file");
    SEE(put(s, "head ", MSG_MORE | MSG_NOSIGNAL));
    SEE(sendfile(s, file, nullptr, 4));
    SEE(put(s, " tail;"));
    SEE(set(s, IPPROTO_TCP, TCP_CORK));
    SEE(put(s, "head "));
    off_t start = 0;
    SEE(sendfile(s, file, &start, 4));
    SEE(set(s, IPPROTO_TCP, TCP_CORK, 0));
    SEE(shutdown(s, SHUT_WR));
}
void sendfile_between_sends::b() {
    const int s = connected();
    SEE(got(s, 24, MSG_WAITALL));
}

BEHAVIOUR(splice_corners,
          "splice(): offsets, no pipe, zero length, a closed pipe, SPLICE_F_NONBLOCK");
void splice_corners::a() {
    const int s = connected();
    int ends[2];
    SEE(pipe(ends));
    loff_t offset = 0;
    SEE(splice(s, &offset, ends[1], nullptr, 10, 0));
    SEE(splice(s, nullptr, s, nullptr, 10, 0));
    SEE(splice(s, nullptr, ends[1], nullptr, 0, 0));
    nonblocking(s);
    SEE(splice(s, nullptr, ends[1], nullptr, 10, 0));
    nonblocking(s, false);
    SEE(splice(ends[0], nullptr, s, nullptr, 10, SPLICE_F_NONBLOCK));
    step("speak");
    SEE(until_bytes(s, 4));
    SEE(splice(s, nullptr, ends[1], nullptr, 3, SPLICE_F_MOVE | SPLICE_F_MORE));
    SEE(splice(s, nullptr, ends[1], nullptr, 100, SPLICE_F_NONBLOCK));
    char c[8] = {};
    SEE(read(ends[0], c, sizeof c));
    SEE(std::string(c));
    step("over");
    SEE(splice(s, nullptr, ends[1], nullptr, 100, 0));
}
void splice_corners::b() {
    const int s = connected();
    step("speak");
    put(s, "word");
    step("over");
    shutdown(s, SHUT_WR);
}

BEHAVIOUR(tee_and_vmsplice, "tee() and vmsplice() into a pipe that is spliced into a socket");
void tee_and_vmsplice::a() {
    const int s = connected();
    int one[2], two[2];
    SEE(pipe(one));
    SEE(pipe(two));
    static char text[] =
        "from memory";  // its pages are what is sent, and read by the peer at any time
    const iovec iov{text, 11};
    SEE(vmsplice(one[1], &iov, 1, 0));
    SEE(tee(one[0], two[1], 11, 0));
    SEE(splice(one[0], nullptr, s, nullptr, 11, SPLICE_F_MORE));
    SEE(splice(two[0], nullptr, s, nullptr, 4, 0));
    SEE(vmsplice(s, &iov, 1, 0));
    SEE(tee(s, two[1], 1, 0));
    SEE(tee(two[0], s, 1, 0));
    SEE(shutdown(s, SHUT_WR));
}
void tee_and_vmsplice::b() { takes_all(); }

BEHAVIOUR(copy_file_range_of_socket, "copy_file_range() does not know sockets");
void copy_file_range_of_socket::a() {
    const int s = connected(), file = memory_file("file");
    SEE(copy_file_range(file, nullptr, s, nullptr, 4, 0));
    SEE(copy_file_range(s, nullptr, file, nullptr, 4, 0));
    SEE(put(s, "end"));
    SEE(shutdown(s, SHUT_WR));
}
void copy_file_range_of_socket::b() { takes_all(); }

BEHAVIOUR(zerocopy_contract,
          "MSG_ZEROCOPY: one completion for each call, ranges, POLLERR until read");
void zerocopy_contract::a() {
    const int s = connected();
    static std::string text = pattern(100000);
    SEE(completion(s));
    SEE(set(s, SOL_SOCKET, SO_ZEROCOPY));
    for (int i = 0; i < 3; i++) SEE(send(s, text.data(), text.size(), MSG_ZEROCOPY));
    SEE(until_acknowledged(s));
    SEE(until(s, POLLERR));
    // Completions of calls that follow each other may be one message: their ranges are put together.
    int calls = 0;
    bool well_formed = true;
    const int64_t end = milliseconds() + 4000;
    while (calls < 3 && milliseconds() < end) {
        unsigned low = 0, high = 0;
        const std::string told = completion(s);
        const size_t where = told.find("calls ");
        if (where == std::string::npos) {
            poll(nullptr, 0, 1);
            continue;
        }
        sscanf(told.c_str() + where, "calls %u to %u", &low, &high);
        well_formed = well_formed && low == unsigned(calls) && told.find("origin 5") != told.npos;
        calls = int(high) + 1;
    }
    SEE(calls);
    SEE(well_formed);
    SEE(completion(s));
    SEE(polled(s, POLLERR));
    SEE(shutdown(s, SHUT_WR));
}
void zerocopy_contract::b() { takes_all(); }

BEHAVIOUR(zerocopy_without_option, "MSG_ZEROCOPY without SO_ZEROCOPY is an ordinary send");
void zerocopy_without_option::a() {
    const int s = connected();
    SEE(put(s, "plain", MSG_ZEROCOPY | MSG_NOSIGNAL));
    SEE(until_acknowledged(s));
    SEE(completion(s));
    SEE(polled(s, POLLERR));
    SEE(shutdown(s, SHUT_WR));
}
void zerocopy_without_option::b() { takes_all(); }

BEHAVIOUR(zerocopy_udp, "MSG_ZEROCOPY of datagrams");
void zerocopy_udp::a() {
    const int s = udp_pair();
    SEE(set(s, SOL_SOCKET, SO_ZEROCOPY));
    SEE(put(s, "zero copied", MSG_ZEROCOPY));
    SEE(until(s, POLLERR));
    SEE(completion(s).substr(0, 40));
    step("over");
}
void zerocopy_udp::b() {
    const int s = udp_pair();
    SEE(got(s));
    step("over");
}

BEHAVIOUR(peek_offset, "SO_PEEK_OFF: peeks go on where the last one ended");
void peek_offset::a() {
    const int s = connected();
    step("speak");
    SEE(until_bytes(s, 10));
    SEE(set(s, SOL_SOCKET, SO_PEEK_OFF, 0));
    SEE(got(s, 3, MSG_PEEK));
    SEE(got(s, 3, MSG_PEEK));
    SEE(got(s, 2));
    SEE(got(s, 3, MSG_PEEK));
    SEE(option(s, SOL_SOCKET, SO_PEEK_OFF));
    SEE(set(s, SOL_SOCKET, SO_PEEK_OFF, -1));
    SEE(got(s, 3, MSG_PEEK));
    step("over");
}
void peek_offset::b() { speaks({"0123456789"}); }

BEHAVIOUR(peek_across_segments, "MSG_PEEK and MSG_TRUNC over what came in several pieces");
void peek_across_segments::a() {
    const int s = connected();
    step("speak");
    SEE(until_bytes(s, 3));
    step("speak");
    SEE(until_bytes(s, 6));
    SEE(got(s, 10, MSG_PEEK));
    SEE(got(s, 4, MSG_PEEK | MSG_WAITALL));
    SEE(got(s, 4, MSG_PEEK | MSG_TRUNC));
    SEE(recv(s, nullptr, 4, MSG_TRUNC));
    SEE(recv(s, nullptr, 100, MSG_TRUNC | MSG_DONTWAIT));
    SEE(recv(s, nullptr, 100, MSG_TRUNC | MSG_DONTWAIT));
    step("over");
}
void peek_across_segments::b() { speaks({"abc", "def"}); }

BEHAVIOUR(stream_flags, "flags of a stream that mean nothing, or are refused");
void stream_flags::a() {
    const int s = connected();
    SEE(put(s, "a", MSG_EOR | MSG_NOSIGNAL));
    SEE(put(s, "b", MSG_CONFIRM | MSG_NOSIGNAL));
    SEE(put(s, "c", MSG_DONTROUTE | MSG_NOSIGNAL));
    SEE(put(s, "d", MSG_DONTWAIT | MSG_NOSIGNAL));
    SEE(put(s, "e", MSG_TRUNC | MSG_NOSIGNAL));
    SEE(put(s, "f", MSG_WAITALL | MSG_NOSIGNAL));
    SEE(put(s, "g", MSG_PEEK | MSG_NOSIGNAL));
    SEE(put(s, "h", MSG_NOSIGNAL | 0x800000));
    SEE(put(s, "i", MSG_FASTOPEN | MSG_NOSIGNAL));
    SEE(put(s, "j", MSG_ERRQUEUE | MSG_NOSIGNAL));
    SEE(shutdown(s, SHUT_WR));
}
void stream_flags::b() { takes_all(); }

BEHAVIOUR(addresses_given, "sendto() and sendmsg() of a stream with addresses, right and wrong");
void addresses_given::a() {
    const int s = connected();
    const sockaddr_in right = at("b", port()), wrong = at("a2", port(7));
    SEE(sendto(s, "x", 1, MSG_NOSIGNAL, raw(right), sizeof right));
    SEE(sendto(s, "x", 1, MSG_NOSIGNAL, raw(wrong), sizeof wrong));
    SEE(sendto(s, "x", 1, MSG_NOSIGNAL, raw(wrong), 3));
    SEE(sendto(s, "x", 1, MSG_NOSIGNAL, nullptr, 3));
    SEE(sendto(s, "x", 1, MSG_NOSIGNAL, raw(wrong), 1000));
    SEE(sendto(s, "x", 1, MSG_NOSIGNAL, raw(wrong), socklen_t(-1)));
    char byte = 'y';
    iovec iov{&byte, 1};
    msghdr m = message_of(iov);
    m.msg_name = const_cast<sockaddr_in*>(&wrong);
    m.msg_namelen = sizeof wrong;
    SEE(sendmsg(s, &m, MSG_NOSIGNAL));
    m.msg_namelen = socklen_t(-1);
    SEE(sendmsg(s, &m, MSG_NOSIGNAL));
    SEE(shutdown(s, SHUT_WR));
}
void addresses_given::b() { takes_all(); }

BEHAVIOUR(names_of_a_stream,
          "recvfrom() and recvmsg() of a stream: what becomes of the name's room");
void names_of_a_stream::a() {
    const int s = connected();
    step("speak");
    SEE(until_bytes(s, 6));
    sockaddr_in name{};
    for (const socklen_t room :
         {socklen_t(sizeof name), socklen_t(4), socklen_t(0), socklen_t(-1)}) {
        socklen_t len = room;
        char c;
        SEE(recvfrom(s, &c, 1, 0, raw(name), &len));
        SEE(long(int(len)));
    }
    char c;
    iovec iov{&c, 1};
    msghdr m = message_of(iov);
    m.msg_name = &name;
    m.msg_namelen = sizeof name;
    m.msg_flags = 77;
    SEE(recvmsg(s, &m, MSG_DONTWAIT));
    SEE(long(m.msg_namelen));
    SEE(long(m.msg_flags));
    m.msg_namelen = socklen_t(-1);
    SEE(recvmsg(s, &m, MSG_DONTWAIT));
    step("over");
}
void names_of_a_stream::b() { speaks({"abcdef"}); }

BEHAVIOUR(vectors_of_a_stream,
          "iovecs: too many, negative lengths, lengths that overflow, empty ones");
void vectors_of_a_stream::a() {
    const int s = connected();
    char text[] = "abc";
    iovec iov[] = {{text, 1}, {nullptr, 0}, {text + 1, 2}};
    msghdr m{};
    m.msg_iov = iov;
    m.msg_iovlen = 3;
    SEE(sendmsg(s, &m, MSG_NOSIGNAL));
    m.msg_iovlen = 1025;
    SEE(sendmsg(s, &m, MSG_NOSIGNAL));
    SEE(recvmsg(s, &m, MSG_DONTWAIT));
    m.msg_iovlen = 0;
    SEE(sendmsg(s, &m, MSG_NOSIGNAL));
    iovec bad[] = {{text, 1}, {text, size_t(-1)}};
    SEE(writev(s, bad, 2));
    SEE(readv(s, bad, 2));
    SEE(writev(s, iov, 3));
    SEE(shutdown(s, SHUT_WR));
}
void vectors_of_a_stream::b() { takes_all(); }

BEHAVIOUR(queues_in_both_directions, "SIOCINQ, SIOCOUTQ, SIOCOUTQNSD while the peer does not read");
void queues_in_both_directions::a() {
    const int s = connected();
    SEE(put(s, "0123456789"));
    SEE(until_acknowledged(s));
    int n = -1;
    SEE(ioctl(s, SIOCOUTQNSD, &n));
    SEE(long(n));
    SEE(ioctl(s, SIOCINQ, &n));
    SEE(long(n));
    step("sent");
    SEE(shutdown(s, SHUT_WR));
    SEE(until_state(s, TCP_FIN_WAIT2));
    SEE(ioctl(s, SIOCOUTQ, &n));
    SEE(long(n));
    step("over");
}
void queues_in_both_directions::b() {
    const int s = connected();
    step("sent");
    int n = -1;
    SEE(until(s, POLLRDHUP));
    SEE(ioctl(s, SIOCINQ, &n));
    SEE(long(n));
    SEE(got(s, 100));
    SEE(ioctl(s, SIOCINQ, &n));
    SEE(long(n));
    step("over");
}

BEHAVIOUR(interface_ioctls, "ioctl() about interfaces and addresses through a socket");
void interface_ioctls::a() {
    const int s = connected(), u = udp_pair(1);
    for (const int fd : {s, u}) {
        char request[40] = "lo";
        SEE(ioctl(fd, SIOCGIFFLAGS, request));
        SEE(ioctl(fd, SIOCGIFINDEX, request));
        strcpy(request, "nonesuch");
        SEE(ioctl(fd, SIOCGIFINDEX, request));
        int n = 0;
        SEE(ioctl(fd, SIOCATMARK, &n));
        SEE(ioctl(fd, TIOCGWINSZ, request));
        SEE(ioctl(fd, SIOCOUTQ, nullptr));
    }
    step("over");
}
void interface_ioctls::b() {
    connected();
    udp_pair(1);
    step("over");
}
