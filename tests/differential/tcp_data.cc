// Moving bytes over TCP: flags, vectors, files, queues.
#include <linux/sockios.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include "differential/behaviour.h"

// What b is in most of these: sends back what it reads.
namespace {
void echo() {
    const int s = connected();
    char buffer[65536];
    ssize_t n;
    while ((n = recv(s, buffer, sizeof buffer, 0)) > 0) put(s, std::string(buffer, size_t(n)));
    close(s);
}
// Sends each word when a has come to the step of its name.
void sends(std::initializer_list<const char*> words) {
    const int s = connected();
    for (const char* word : words) {
        step(word);
        put(s, word);
        step("sent");
    }
    step("last");
}
// a's side of sends().
void next(int s, const char* word) {
    step(word);
    step("sent");
    until_bytes(s, int(strlen(word)));
}
int memory_file(const std::string& text) {
    const int fd = memfd_create("file", MFD_CLOEXEC);
    const ssize_t n = write(fd, text.data(), text.size());
    lseek(fd, 0, SEEK_SET);
    return n == ssize_t(text.size()) ? fd : -1;
}
}  // namespace

BEHAVIOUR(recv_waitall, "MSG_WAITALL waits for the whole length, ends early at EOF");
void recv_waitall::a() {
    const int s = connected();
    step("ready");
    SEE(got(s, 6, MSG_WAITALL));
    SEE(got(s, 6, MSG_WAITALL));
    SEE(got(s, 6, MSG_WAITALL));
}
void recv_waitall::b() {
    const int s = connected();
    SEE(put(s, "abc"));
    step("ready");
    SEE(put(s, "defgh"));
    SEE(shutdown(s, SHUT_WR));
}

BEHAVIOUR(recv_peek, "MSG_PEEK leaves the data, alone and with WAITALL");
void recv_peek::a() {
    const int s = connected();
    next(s, "hello");
    SEE(got(s, 3, MSG_PEEK));
    SEE(got(s, 100, MSG_PEEK));
    SEE(got(s, 5, MSG_PEEK | MSG_WAITALL));
    SEE(got(s, 2));
    SEE(got(s, 100, MSG_PEEK));
    SEE(got(s, 0, MSG_PEEK));
    SEE(got(s, 100));
    SEE(got(s, 100, MSG_PEEK | MSG_DONTWAIT));
    next(s, "world");
    SEE(polled(s));
    SEE(got(s, 100, MSG_PEEK));
    SEE(polled(s));
    step("last");
}
void recv_peek::b() { sends({"hello", "world"}); }

BEHAVIOUR(recv_dontwait,
          "MSG_DONTWAIT and O_NONBLOCK: EAGAIN when there is nothing, what there is else");
void recv_dontwait::a() {
    const int s = connected();
    SEE(got(s, 10, MSG_DONTWAIT));
    SEE(got(s, 10, MSG_DONTWAIT | MSG_WAITALL));
    next(s, "some");
    SEE(got(s, 10, MSG_DONTWAIT | MSG_WAITALL));
    nonblocking(s);
    SEE(got(s));
    SEE(read(s, &errno, 1));
    next(s, "more");
    SEE(got(s, 2));
    SEE(got(s, 10, MSG_WAITALL));
    step("last");
}
void recv_dontwait::b() { sends({"some", "more"}); }

BEHAVIOUR(recv_trunc, "MSG_TRUNC throws data away");
void recv_trunc::a() {
    const int s = connected();
    next(s, "abcdefgh");
    char buffer[8] = "......";
    SEE(recv(s, buffer, 3, MSG_TRUNC));
    SEE(std::string(buffer));
    SEE(recv(s, nullptr, 2, MSG_TRUNC));
    SEE(got(s));
    step("last");
}
void recv_trunc::b() { sends({"abcdefgh"}); }

BEHAVIOUR(recv_zero, "receives and sends of no bytes");
void recv_zero::a() {
    const int s = connected();
    SEE(got(s, 0, MSG_DONTWAIT));
    SEE(put(s, ""));
    SEE(read(s, nullptr, 0));
    SEE(write(s, nullptr, 0));
    nonblocking(s);
    SEE(got(s, 0));
    next(s, "x");
    SEE(got(s, 0));
    SEE(got(s));
    SEE(shutdown(s, SHUT_WR));
    SEE(put(s, ""));
    step("last");
}
void recv_zero::b() { sends({"x"}); }

BEHAVIOUR(recv_timeout, "SO_RCVTIMEO: EAGAIN, or the part that came with WAITALL");
void recv_timeout::a() {
    const int s = connected();
    set_time(s, SO_RCVTIMEO, 150);
    int64_t begin = milliseconds();
    SEE(got(s));
    SEE(waited(begin, 150));
    next(s, "part");
    begin = milliseconds();
    SEE(got(s, 100, MSG_WAITALL));
    SEE(waited(begin, 150));
    char c;
    SEE(read(s, &c, 1));
    step("last");
}
void recv_timeout::b() { sends({"part"}); }

BEHAVIOUR(send_timeout, "SO_SNDTIMEO: a full pipe gives a part, then EAGAIN");
void send_timeout::a() {
    const int s = connected();
    set_time(s, SO_SNDTIMEO, 200);
    const std::string much = pattern(32 << 20);
    const int64_t begin = milliseconds();
    const long n = put(s, much);
    SEE(n > 0 && n < long(much.size()));
    SEE(waited(begin, 200));
    while (put(s, much, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    note(strerrorname_np(errno));
    nonblocking(s);
    while (put(s, much) > 0) {
    }
    note(strerrorname_np(errno));
    step("full");
}
void send_timeout::b() {
    const int s = connected();
    step("full");
    SEE(until(s, POLLIN));
}

BEHAVIOUR(send_writable_again,
          "a sender that filled the pipe becomes writable when the peer reads");
void send_writable_again::a() {
    const int s = connected();
    const long total = fill(s);
    SEE(polled(s, POLLOUT));
    tell(std::to_string(total));
    SEE(until(s, POLLOUT));
    SEE(put(s, "x"));
    SEE(shutdown(s, SHUT_WR));
    SEE(rest(s));
}
void send_writable_again::b() {
    const int s = connected();
    const long total = std::stol(hear());
    long seen = 0;
    char buffer[65536];
    ssize_t n;
    while ((n = recv(s, buffer, sizeof buffer, 0)) > 0) seen += n;
    SEE(seen - total);
    close(s);
}

BEHAVIOUR(recvmsg_vectors, "sendmsg() and recvmsg() with several and empty vectors");
void recvmsg_vectors::a() {
    const int s = connected();
    char one[] = "one", two[] = "two", three[] = "three";
    iovec out[] = {{one, 3}, {nullptr, 0}, {two, 3}, {three, 5}};
    msghdr m{};
    m.msg_iov = out;
    m.msg_iovlen = 4;
    SEE(sendmsg(s, &m, MSG_NOSIGNAL));
    SEE(until_bytes(s, 11));
    char a[2] = {}, b[5] = {}, c[20] = {};
    iovec in[] = {{a, 2}, {nullptr, 0}, {b, 5}, {c, 20}};
    sockaddr_in name{};
    char control[64];
    m.msg_iov = in;
    m.msg_name = &name;
    m.msg_namelen = sizeof name;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    SEE(recvmsg(s, &m, 0));
    SEE(std::string(a, 2) + "," + std::string(b, 5) + "," + c);
    SEE(long(m.msg_namelen));
    SEE(long(m.msg_controllen));
    SEE(long(m.msg_flags));
    m.msg_iovlen = 2000;
    SEE(recvmsg(s, &m, MSG_DONTWAIT));
    SEE(sendmsg(s, &m, MSG_DONTWAIT));
    m.msg_iovlen = 0;
    SEE(sendmsg(s, &m, MSG_DONTWAIT));
    SEE(recvmsg(s, &m, MSG_DONTWAIT));
    SEE(shutdown(s, SHUT_WR));
}
void recvmsg_vectors::b() { echo(); }

BEHAVIOUR(readv_writev, "readv(), writev(); preadv() and pread() know no offset in a socket");
void readv_writev::a() {
    const int s = connected();
    char one[] = "first", two[] = "second", a[5], b[6];
    iovec out[] = {{one, 5}, {two, 6}}, in[] = {{a, 5}, {b, 6}};
    SEE(writev(s, out, 2));
    SEE(until_bytes(s, 11));
    SEE(pread(s, a, 1, 0));
    SEE(pwrite(s, a, 1, 0));
    SEE(preadv(s, in, 2, 0));
    SEE(pwritev(s, out, 2, 0));
    SEE(readv(s, in, 2));
    SEE(std::string(a, 5) + "," + std::string(b, 6));
    SEE(writev(s, out, 0));
    SEE(writev(s, out, -1));
    SEE(writev(s, out, 1025));
    SEE(writev(s, nullptr, 1));
    SEE(lseek(s, 0, SEEK_CUR));
    SEE(ftruncate(s, 0));
    SEE(fsync(s));
    SEE(shutdown(s, SHUT_WR));
}
void readv_writev::b() { echo(); }

BEHAVIOUR(send_null, "null buffers: EFAULT, and the connection lives on");
void send_null::a() {
    const int s = connected();
    SEE(send(s, nullptr, 10, MSG_NOSIGNAL));
    SEE(sendmsg(s, nullptr, MSG_NOSIGNAL));
    iovec two[] = {{nullptr, 0}, {nullptr, 4}};
    SEE(writev(s, two, 2));
    SEE(put(s, "fine"));
    SEE(until_bytes(s, 4));
    SEE(recv(s, nullptr, 10, MSG_DONTWAIT));
    SEE(got(s));
    SEE(shutdown(s, SHUT_WR));
}
void send_null::b() { echo(); }

BEHAVIOUR(send_bad_memory, "buffers that are not mapped: EFAULT, and the connection lives on");
void send_bad_memory::a() {
    const int s = connected();
    char* bad =
        static_cast<char*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    SEE(send(s, bad, 10, MSG_NOSIGNAL));
    SEE(put(s, "fine"));
    _exit(0);
}
void send_bad_memory::b() {
    connected();
    _exit(0);
}

BEHAVIOUR(send_more, "MSG_MORE and TCP_CORK hold data back and lose none");
void send_more::a() {
    const int s = connected();
    SEE(put(s, "one", MSG_MORE | MSG_NOSIGNAL));
    SEE(put(s, "two", MSG_MORE | MSG_NOSIGNAL));
    step("held");
    SEE(put(s, "end"));
    SEE(set(s, IPPROTO_TCP, TCP_CORK));
    step("first");
    SEE(put(s, "corked"));
    step("corked");
    SEE(set(s, IPPROTO_TCP, TCP_CORK, 0));
    step("last");
}
void send_more::b() {
    const int s = connected();
    step("held");
    SEE(got(s, 9, MSG_WAITALL));
    step("first");
    step("corked");
    SEE(got(s, 6, MSG_WAITALL));
    step("last");
}

BEHAVIOUR(send_oob, "urgent data: POLLPRI, MSG_OOB, SIOCATMARK, the mark stops reading");
void send_oob::a() {
    const int s = connected();
    SEE(put(s, "abc"));
    SEE(put(s, "X", MSG_OOB | MSG_NOSIGNAL));
    SEE(put(s, "def"));
    SEE(until_acknowledged(s));
    step("sent");
    step("seen");
}
void send_oob::b() {
    const int s = connected();
    step("sent");
    SEE(until(s, POLLPRI));
    SEE(until_bytes(s, 3));
    nonblocking(s);
    SEE(polled(s));
    int mark = -1;
    SEE(ioctl(s, SIOCATMARK, &mark));
    SEE(long(mark));
    SEE(got(s));
    SEE(ioctl(s, SIOCATMARK, &mark));
    SEE(long(mark));
    SEE(got(s, 1, MSG_OOB));
    SEE(got(s, 1, MSG_OOB));
    SEE(got(s));
    SEE(polled(s));
    step("seen");
}

BEHAVIOUR(send_oob_inline, "SO_OOBINLINE: urgent data is in its place");
void send_oob_inline::a() {
    const int s = connected();
    step("set");
    SEE(put(s, "ab"));
    SEE(put(s, "X", MSG_OOB | MSG_NOSIGNAL));
    step("seen");
}
void send_oob_inline::b() {
    const int s = connected();
    SEE(set(s, SOL_SOCKET, SO_OOBINLINE));
    step("set");
    SEE(until_bytes(s, 3));
    nonblocking(s);
    SEE(got(s, 1, MSG_OOB));
    SEE(got(s));
    SEE(got(s));
    step("seen");
}

BEHAVIOUR(recv_bad_flags,
          "recv(MSG_OOB), MSG_ERRQUEUE, sendto() an address, flags that nobody knows");
void recv_bad_flags::a() {
    const int s = connected();
    SEE(got(s, 1, MSG_OOB));
    SEE(got(s, 1, MSG_ERRQUEUE));
    const sockaddr_in elsewhere = at("b", port(5));
    SEE(sendto(s, "x", 1, MSG_NOSIGNAL, raw(elsewhere), sizeof elsewhere));
    SEE(got(s, 1));
    sockaddr_in name = elsewhere;
    socklen_t len = sizeof name;
    SEE(put(s, "y"));
    char c;
    SEE(recvfrom(s, &c, 1, 0, raw(name), &len));
    SEE(long(len));
    SEE(put(s, "z", MSG_CONFIRM | MSG_DONTROUTE | MSG_NOSIGNAL));
    SEE(got(s, 1, MSG_CMSG_CLOEXEC));
    SEE(shutdown(s, SHUT_WR));
}
void recv_bad_flags::b() { echo(); }

BEHAVIOUR(sendfile_whole,
          "sendfile() with and without an offset, to the end of the file and beyond");
void sendfile_whole::a() {
    const int s = connected();
    const int file = memory_file(pattern(500000));
    off_t offset = 100;
    SEE(sendfile(s, file, &offset, 1000));
    SEE(long(offset));
    SEE(lseek(file, 0, SEEK_CUR));
    SEE(sendfile(s, file, nullptr, 200));
    SEE(lseek(file, 0, SEEK_CUR));
    long total = 0, n;
    while ((n = sendfile(s, file, nullptr, 1 << 20)) > 0) total += n;
    SEE(total);
    SEE(sendfile(s, file, nullptr, 100));
    SEE(sendfile(s, -1, nullptr, 100));
    SEE(sendfile(file, s, nullptr, 100));
    SEE(shutdown(s, SHUT_WR));
    SEE(sendfile(s, file, &offset, 0));
}
void sendfile_whole::b() {
    const int s = connected();
    SEE(rest(s));
}

BEHAVIOUR(splice_both, "splice() from a pipe into a socket and from a socket into a pipe");
void splice_both::a() {
    const int s = connected();
    int ends[2];
    SEE(pipe(ends));
    SEE(write(ends[1], "through the pipe", 16));
    SEE(splice(ends[0], nullptr, s, nullptr, 16, 0));
    SEE(until_bytes(s, 16));
    SEE(splice(s, nullptr, ends[1], nullptr, 100, 0));
    char buffer[32] = {};
    SEE(read(ends[0], buffer, sizeof buffer));
    SEE(std::string(buffer));
    nonblocking(s);
    SEE(splice(s, nullptr, ends[1], nullptr, 100, 0));
    SEE(shutdown(s, SHUT_WR));
}
void splice_both::b() { echo(); }

BEHAVIOUR(mmsg_tcp, "sendmmsg() and recvmmsg() on a stream");
void mmsg_tcp::a() {
    const int s = connected();
    char one[] = "one", two[] = "two", a[3], b[3];
    iovec out[] = {{one, 3}, {two, 3}}, in[] = {{a, 3}, {b, 3}};
    mmsghdr m[2]{}, r[2]{};
    for (int i = 0; i < 2; i++) {
        m[i].msg_hdr.msg_iov = &out[i];
        r[i].msg_hdr.msg_iov = &in[i];
        m[i].msg_hdr.msg_iovlen = r[i].msg_hdr.msg_iovlen = 1;
    }
    SEE(sendmmsg(s, m, 2, MSG_NOSIGNAL));
    SEE(long(m[1].msg_len));
    SEE(until_bytes(s, 6));
    SEE(recvmmsg(s, r, 2, 0, nullptr));
    SEE(long(r[1].msg_len));
    SEE(std::string(b, 3));
    SEE(recvmmsg(s, r, 2, MSG_DONTWAIT, nullptr));
    SEE(shutdown(s, SHUT_WR));
}
void mmsg_tcp::b() { echo(); }

BEHAVIOUR(queue_sizes, "FIONREAD, SIOCOUTQ, TIOCOUTQ, SIOCOUTQNSD");
void queue_sizes::a() {
    const int s = connected();
    int n = -1;
    SEE(ioctl(s, FIONREAD, &n));
    SEE(long(n));
    next(s, "twelve bytes");
    SEE(ioctl(s, FIONREAD, &n));
    SEE(long(n));
    SEE(got(s, 5));
    SEE(ioctl(s, TIOCINQ, &n));
    SEE(long(n));
    SEE(ioctl(s, SIOCOUTQ, &n));
    SEE(long(n));
    SEE(ioctl(s, TIOCOUTQ, &n));
    SEE(long(n));
    SEE(ioctl(s, SIOCOUTQNSD, &n));
    SEE(long(n));
    SEE(ioctl(s, FIONREAD, nullptr));
    SEE(ioctl(s, 0x1234, &n));
    step("last");
    const int l = listening(3);
    SEE(ioctl(l, FIONREAD, &n));
    SEE(ioctl(l, SIOCOUTQ, &n));
    const int f = tcp();
    SEE(ioctl(f, FIONREAD, &n));
}
void queue_sizes::b() { sends({"twelve bytes"}); }

BEHAVIOUR(queue_after_fin, "FIONREAD and reading when the FIN has come behind data");
void queue_after_fin::a() {
    const int s = connected();
    step("fin");
    SEE(until(s, POLLRDHUP));
    int n = -1;
    SEE(ioctl(s, FIONREAD, &n));
    SEE(long(n));
    SEE(got(s, 2));
    SEE(ready(s));
    SEE(got(s, 10, MSG_WAITALL));
    SEE(ioctl(s, FIONREAD, &n));
    SEE(long(n));
    SEE(got(s, 1, MSG_DONTWAIT));
    SEE(got(s, 1, MSG_PEEK));
}
void queue_after_fin::b() {
    const int s = connected();
    SEE(put(s, "last"));
    SEE(shutdown(s, SHUT_WR));
    step("fin");
}

BEHAVIOUR(recv_low_water,
          "SO_RCVLOWAT: readable, and recv() returns, only from that many bytes on");
void recv_low_water::a() {
    const int s = connected();
    SEE(set(s, SOL_SOCKET, SO_RCVLOWAT, 6));
    next(s, "abc");
    SEE(polled(s, POLLIN, 30));
    SEE(got(s, 100, MSG_DONTWAIT | MSG_PEEK));
    next(s, "defgh");
    SEE(until(s, POLLIN));
    SEE(got(s));
    SEE(set(s, SOL_SOCKET, SO_RCVLOWAT, 1));
    SEE(polled(s, POLLIN));
    step("last");
}
void recv_low_water::b() { sends({"abc", "defgh"}); }

BEHAVIOUR(big_both_ways, "half a megabyte each way at the same time");
void big_both_ways::a() {
    const int s = connected();
    nonblocking(s);
    std::string out = pattern(500000), in;
    while (!out.empty() || in.size() < 500000) {
        pollfd p{s, short(POLLIN | (out.empty() ? 0 : POLLOUT)), 0};
        if (poll(&p, 1, 5000) <= 0) break;
        char buffer[20000];
        const ssize_t n = recv(s, buffer, sizeof buffer, 0);
        if (n == 0) break;
        if (n > 0) in.append(buffer, size_t(n));
        const long m = out.empty() ? 0 : put(s, out.substr(0, 30000));
        if (m > 0) out.erase(0, size_t(m));
    }
    SEE(long(in.size()));
    SEE(long(hash(in) & 0xffffffff));
}
void big_both_ways::b() { big_both_ways::a(); }
