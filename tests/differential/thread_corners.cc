// Threads: calls that block while another thread closes, shuts down, cancels, exits.
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <atomic>
#include <memory>

#include "differential/behaviour.h"

namespace {
void stays() {
    const int s = connected();
    step("over");
    (void)s;
}
// Cancels a thread in a call; then the socket must still work.
void cancelled_in(const std::function<void(int)>& call) {
    const int s = connected();
    std::atomic<int> cleaned{0};
    Thread thread([&] {
        pthread_cleanup_push([](void* flag) { ++*static_cast<std::atomic<int>*>(flag); }, &cleaned);
        call(s);
        pthread_cleanup_pop(0);
    });
    thread.sleeps();
    SEE(thread.cancel());
    SEE(thread.join());
    SEE(int(cleaned));
    step("cancelled");
    SEE(got(s, 5, MSG_WAITALL));
    SEE(put(s, "answer"));
}
void says_hello() {
    const int s = connected();
    step("cancelled");
    SEE(put(s, "hello"));
    SEE(got(s, 6, MSG_WAITALL));
}
}  // namespace

BEHAVIOUR(cancel_read, "pthread_cancel() of a thread in read()");
void cancel_read::a() {
    cancelled_in([](int s) {
        char c;
        (void)!read(s, &c, 1);
    });
}
void cancel_read::b() { says_hello(); }

BEHAVIOUR(cancel_readv, "pthread_cancel() of a thread in readv()");
void cancel_readv::a() {
    cancelled_in([](int s) {
        char c;
        iovec iov{&c, 1};
        (void)!readv(s, &iov, 1);
    });
}
void cancel_readv::b() { says_hello(); }

BEHAVIOUR(cancel_recvmsg, "pthread_cancel() of a thread in recvmsg()");
void cancel_recvmsg::a() {
    cancelled_in([](int s) {
        char c;
        iovec iov{&c, 1};
        msghdr m = message_of(iov);
        recvmsg(s, &m, 0);
    });
}
void cancel_recvmsg::b() { says_hello(); }

BEHAVIOUR(cancel_poll, "pthread_cancel() of a thread in poll()");
void cancel_poll::a() {
    cancelled_in([](int s) { polled(s, POLLIN, 5000); });
}
void cancel_poll::b() { says_hello(); }

BEHAVIOUR(cancel_select, "pthread_cancel() of a thread in select()");
void cancel_select::a() {
    cancelled_in([](int s) {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(s, &in);
        timeval tv{5, 0};
        select(s + 1, &in, nullptr, nullptr, &tv);
    });
}
void cancel_select::b() { says_hello(); }

BEHAVIOUR(cancel_epoll_wait, "pthread_cancel() of a thread in epoll_wait()");
void cancel_epoll_wait::a() {
    cancelled_in([](int s) {
        const int ep = epoll_create1(0);
        epoll_event e{EPOLLIN, {.fd = s}};
        epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
        epoll_wait(ep, &e, 1, 5000);
    });
}
void cancel_epoll_wait::b() { says_hello(); }

BEHAVIOUR(cancel_accept, "pthread_cancel() of a thread in accept(): the listener works on");
void cancel_accept::a() {
    step("cancelled");
    const int s = tcp();
    SEE(connect_to(s, "b"));
    on_ring(s);
    SEE(got(s));
}
void cancel_accept::b() {
    const int l = listening();
    on_ring(l);
    Thread thread([l] { accept(l, nullptr, nullptr); });
    thread.sleeps();
    SEE(thread.cancel());
    SEE(thread.join());
    step("cancelled");
    SEE(put(accept(l, nullptr, nullptr), "served"));
}

BEHAVIOUR(cancel_send, "pthread_cancel() of a thread that is blocked in send()");
void cancel_send::a() {
    const int s = connected();
    const std::string much = pattern(32 << 20);
    Thread thread([&] { put(s, much); });
    thread.sleeps();
    SEE(thread.cancel());
    SEE(thread.join());
    step("cancelled");
    SEE(shutdown(s, SHUT_WR));
    step("over");
}
void cancel_send::b() {
    const int s = connected();
    step("cancelled");
    // As much as had gone, which differs; all of it is right.
    std::string all, piece(1 << 16, 0);
    ssize_t n;
    while ((n = recv(s, piece.data(), piece.size(), 0)) > 0) all.append(piece, 0, size_t(n));
    SEE(n);
    SEE(!all.empty() && pattern(32 << 20).compare(0, all.size(), all) == 0);
    step("over");
}

SOLO(cancel_connect, "pthread_cancel() of a thread in connect()") {
    const int first = tcp(SOCK_NONBLOCK);  // opens the ring
    SEE(connect_to(first, "silent", 1));
    const int s = tcp();
    Thread thread([s] { connect_to(s, "silent"); });
    thread.sleeps();
    on_ring(s);
    SEE(thread.cancel());
    SEE(thread.join());
    nonblocking(s);
    SEE(connect_to(s, "silent"));
    SEE(close(s));
}

BEHAVIOUR(cancel_udp, "pthread_cancel() of a thread in recvfrom()");
void cancel_udp::a() {
    const int s = udp_pair();
    Thread thread([s] { got(s); });
    thread.sleeps();
    SEE(thread.cancel());
    SEE(thread.join());
    step("cancelled");
    SEE(got(s));
}
void cancel_udp::b() {
    const int s = udp_pair();
    step("cancelled");
    put(s, "datagram");
}

BEHAVIOUR(cancel_disabled, "a thread that cannot be cancelled goes on; it is afterwards");
void cancel_disabled::a() {
    const int s = connected();
    std::string first;
    Thread thread([&] {
        int old;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
        first = got(s, 5, MSG_WAITALL);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
        got(s, 5);
    });
    thread.sleeps();
    SEE(thread.cancel());
    thread.sleeps();
    step("cancelled");
    SEE(thread.join());
    SEE(first);
    SEE(put(s, "answer"));
}
void cancel_disabled::b() { says_hello(); }

BEHAVIOUR(cancel_pending, "a cancellation that came before: the next call that is a point of it");
void cancel_pending::a() {
    const int s = connected();
    std::atomic<bool> go{false}, reached{false};
    step("cancelled");
    SEE(until_bytes(s, 5));
    Thread thread([&] {
        int old;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
        pollfd p{s, POLLRDHUP, 0};
        while (!go) poll(&p, 1, 10);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
        got(s, 5);  // there is data: a point of cancellation all the same
        reached = true;
    });
    SEE(thread.cancel());
    go = true;
    SEE(thread.join());
    SEE(bool(reached));
    SEE(put(s, "answer"));
}
void cancel_pending::b() { says_hello(); }

BEHAVIOUR(shut_write_wakes_writer, "shutdown(SHUT_WR) ends the send() of another thread");
void shut_write_wakes_writer::a() {
    const int s = connected();
    const std::string much = pattern(32 << 20);
    std::atomic<long> sent{0};
    std::atomic<int> error{0};
    Thread writer([&] {
        long n;
        while ((n = put(s, much)) > 0) sent += n;
        error = errno;
    });
    writer.sleeps();
    SEE(shutdown(s, SHUT_WR));
    writer.join();
    SEE(strerrorname_np(error));
    linger_for(s, 0);
    step("over");
}
void shut_write_wakes_writer::b() { stays(); }

BEHAVIOUR(reset_wakes_writer, "a reset ends the send() of another thread");
void reset_wakes_writer::a() {
    const int s = connected();
    const std::string much = pattern(32 << 20);
    std::atomic<int> error{0};
    Thread writer([&] {
        while (put(s, much) > 0) {
        }
        error = errno;
    });
    writer.sleeps();
    step("reset");
    writer.join();
    SEE(error == ECONNRESET || error == EPIPE);
    SEE(put(s, "x"));
}
void reset_wakes_writer::b() {
    const int s = connected();
    step("reset");
    linger_for(s, 0);
    close(s);
}

BEHAVIOUR(reset_wakes_readers, "a reset wakes all readers; one of them hears of it");
void reset_wakes_readers::a() {
    const int s = connected();
    std::atomic<int> resets{0}, ends{0};
    const auto reads = [&] {
        const std::string seen = got(s, 1);
        resets += seen == "-1 ECONNRESET";
        ends += seen == "0 \"\"";
    };
    Thread one(reads), two(reads), three(reads);
    for (Thread* each : {&one, &two, &three}) each->sleeps();
    step("reset");
    for (Thread* each : {&one, &two, &three}) each->join();
    SEE(int(resets));
    SEE(int(ends));
}
void reset_wakes_readers::b() {
    const int s = connected();
    step("reset");
    linger_for(s, 0);
    close(s);
}

BEHAVIOUR(fin_wakes_readers, "a FIN wakes all readers");
void fin_wakes_readers::a() {
    const int s = connected();
    std::atomic<int> ends{0};
    const auto reads = [&] { ends += got(s, 1) == "0 \"\""; };
    Thread one(reads), two(reads);
    one.sleeps();
    two.sleeps();
    step("fin");
    one.join();
    two.join();
    SEE(int(ends));
}
void fin_wakes_readers::b() {
    const int s = connected();
    step("fin");
    shutdown(s, SHUT_WR);
}

BEHAVIOUR(close_beside_writer, "close() while another thread is blocked in send(): it goes on");
void close_beside_writer::a() {
    const int s = connected();
    const std::string much = pattern(8 << 20);
    std::atomic<long> sent{0};
    Thread writer([&] { sent = put(s, much); });
    writer.sleeps();
    SEE(close(s));
    step("closed");
    writer.join();
    SEE(long(sent));
}
void close_beside_writer::b() {
    const int s = connected();
    step("closed");
    SEE(rest(s));
}

BEHAVIOUR(close_beside_acceptor, "close() of a listener while another thread is in accept()");
void close_beside_acceptor::a() {
    step("closed");
    const int s = tcp();
    SEE(connect_to(s, "b"));
    on_ring(s);
    step("over");
}
void close_beside_acceptor::b() {
    const int l = listening();
    on_ring(l);
    std::atomic<int> result{-1};
    Thread acceptor([&] { result = accept(l, nullptr, nullptr) >= 0; });
    acceptor.sleeps();
    SEE(close(l));
    step("closed");
    acceptor.join();
    SEE(int(result));
    step("over");
}

BEHAVIOUR(close_beside_udp_reader, "close() while another thread is in recvfrom()");
void close_beside_udp_reader::a() {
    const int s = udp_pair();
    Asleep reader([&] { return got(s); });
    SEE(close(s));
    SEE(got(s));
    step("closed");
    SEE(reader.wakes());
}
void close_beside_udp_reader::b() {
    const int s = udp_pair();
    step("closed");
    put(s, "after the close");
}

BEHAVIOUR(shutdown_wakes_udp_reader, "shutdown() of a connected UDP socket wakes its reader");
void shutdown_wakes_udp_reader::a() {
    const int s = udp_pair();
    Asleep reader([&] { return got(s); });
    SEE(shutdown(s, SHUT_RD));
    SEE(reader.wakes());
}
void shutdown_wakes_udp_reader::b() { udp_pair(); }

BEHAVIOUR(option_beside_reader, "setsockopt() and ioctl() while another thread is in recv()");
void option_beside_reader::a() {
    const int s = connected();
    Asleep reader([&] { return got(s); });
    SEE(set(s, IPPROTO_TCP, TCP_NODELAY));
    SEE(set(s, SOL_SOCKET, SO_KEEPALIVE));
    SEE(set(s, SOL_SOCKET, SO_RCVBUF, 100000));
    nonblocking(s);
    reader.sleeps();
    step("speak");
    SEE(reader.wakes());
    SEE(got(s));
    step("over");
}
void option_beside_reader::b() {
    const int s = connected();
    step("speak");
    put(s, "word");
    step("over");
}

BEHAVIOUR(moved_beside_reader,
          "an option that only the kernel has, while another thread is in recv()");
void moved_beside_reader::a() {
    const int s = connected();
    Asleep reader([&] { return got(s); });
    Asleep poller([&] { return polled(s, POLLRDHUP, 5000); });
    SEE(set(s, IPPROTO_TCP, TCP_SAVE_SYN));
    SEE(set(s, IPPROTO_IP, IP_MINTTL, 1));
    step("speak");
    SEE(reader.wakes());
    step("end");
    SEE(poller.wakes());
}
void moved_beside_reader::b() {
    const int s = connected();
    step("speak");
    put(s, "word");
    step("end");
    shutdown(s, SHUT_WR);
}

BEHAVIOUR(peekers_and_a_reader, "threads that peek and one that reads");
void peekers_and_a_reader::a() {
    const int s = connected();
    std::string peeked, read;
    Thread peeker([&] { peeked = got(s, 4, MSG_PEEK | MSG_WAITALL); });
    peeker.sleeps();
    step("speak");
    peeker.join();
    SEE(peeked);
    Thread reader([&] { read = got(s, 4); });
    reader.join();
    SEE(read);
    step("over");
}
void peekers_and_a_reader::b() {
    const int s = connected();
    step("speak");
    put(s, "word");
    step("over");
}

BEHAVIOUR(exit_with_sleepers, "_exit() while threads sleep in calls: the peer sees the end");
void exit_with_sleepers::a() {
    const int s = connected(), t = connected(1);
    static Thread* threads[2];
    threads[0] = new Thread([s] { got(s); });
    threads[1] = new Thread([t] { polled(t, POLLIN, 5000); });
    for (Thread* each : threads) each->sleeps();
    SEE(put(s, "last words"));
    step("exits");
    _exit(5);
}
void exit_with_sleepers::b() {
    const int s = connected(), t = connected(1);
    step("exits");
    SEE(rest(s));
    SEE(rest(t));
    _exit(0);
}

BEHAVIOUR(thread_exit_in_between, "a thread that made a connection ends; another goes on with it");
void thread_exit_in_between::a() {
    int s = -1;
    Thread maker([&] {
        s = connected();
        put(s, "made");
    });
    maker.join();
    SEE(got(s));
    std::string seen;
    Thread other([&] {
        put(s, "other");
        seen = got(s);
    });
    other.join();
    SEE(seen);
}
void thread_exit_in_between::b() {
    const int s = connected();
    SEE(got(s, 4, MSG_WAITALL));
    SEE(put(s, "one"));
    SEE(got(s, 5, MSG_WAITALL));
    SEE(put(s, "two"));
}

BEHAVIOUR(many_threads_many_sockets, "eight threads, each with a connection of its own");
void many_threads_many_sockets::a() {
    std::vector<int> fds;
    for (int i = 0; i < 8; i++) fds.push_back(connected(i));
    std::atomic<int> good{0};
    {
        std::vector<std::unique_ptr<Thread>> all;
        for (int i = 0; i < 8; i++)
            all.push_back(std::make_unique<Thread>([&good, i, s = fds[size_t(i)]] {
                const std::string text(5000, char('a' + i));
                put(s, text);
                shutdown(s, SHUT_WR);
                std::string back(5000, '?');
                good += recv(s, back.data(), back.size(), MSG_WAITALL) == 5000 && back == text;
            }));
    }
    SEE(int(good));
}
void many_threads_many_sockets::b() {
    std::vector<int> fds;
    for (int i = 0; i < 8; i++) fds.push_back(connected(i));
    std::vector<std::unique_ptr<Thread>> all;
    for (const int s : fds)
        all.push_back(std::make_unique<Thread>([s] {
            std::string text(5000, '?');
            const ssize_t n = recv(s, text.data(), text.size(), MSG_WAITALL);
            put(s, text.substr(0, size_t(std::max<ssize_t>(n, 0))));
        }));
}

BEHAVIOUR(fork_beside_thread,
          "fork() while another thread is in recv(): parent and child both work");
void fork_beside_thread::a() {
    const int s = connected(), t = connected(1);
    Asleep reader([&] { return got(s); });
    const int pid = fork();
    if (pid == 0) {
        SEE(put(t, "from the child"));
        _exit(2);
    }
    SEE(outcome(pid));
    step("speak");
    SEE(reader.wakes());
    step("over");
}
void fork_beside_thread::b() {
    const int s = connected(), t = connected(1);
    SEE(got(t));
    step("speak");
    put(s, "word");
    step("over");
}
