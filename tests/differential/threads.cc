// Several threads on one socket.
#include <atomic>
#include <thread>

#include "differential/behaviour.h"

BEHAVIOUR(shutdown_wakes_reader, "shutdown() wakes a thread that is blocked in recv()");
void shutdown_wakes_reader::a() {
    const int s = connected();
    Asleep reader([&] { return got(s); });
    SEE(shutdown(s, SHUT_RD));
    SEE(reader.wakes());
}
void shutdown_wakes_reader::b() { connected(); }

BEHAVIOUR(close_beside_reader,
          "close() does not wake a thread in recv(); the data still reaches it");
void close_beside_reader::a() {
    const int s = connected();
    Asleep reader([&] { return got(s); });
    SEE(close(s));
    step("closed");
    SEE(reader.wakes());
    SEE(got(s));
}
void close_beside_reader::b() {
    const int s = connected();
    step("closed");
    SEE(put(s, "after the close"));
    SEE(rest(s));
}

BEHAVIOUR(shutdown_wakes_acceptor, "shutdown() wakes a thread that is blocked in accept()");
void shutdown_wakes_acceptor::a() {
    step("down");
    const int s = tcp();
    SEE(connect_to(s, "b"));
    on_ring(s);
}
void shutdown_wakes_acceptor::b() {
    const int l = listening();
    on_ring(l);
    Asleep acceptor(
        [&] { return accept(l, nullptr, nullptr) < 0 ? strerrorname_np(errno) : "accepted"; });
    SEE(shutdown(l, SHUT_RDWR));
    SEE(acceptor.wakes());
    step("down");
}

BEHAVIOUR(two_writers, "two threads write lines at the same time: no line is torn or lost");
void two_writers::a() {
    const int s = connected();
    const auto lines = [s](char c) {
        for (int i = 0; i < 200; i++) put(s, std::string(99, c) + "\n");
    };
    std::thread one(lines, 'x'), two(lines, 'y');
    one.join();
    two.join();
    SEE(shutdown(s, SHUT_WR));
}
void two_writers::b() {
    const int s = connected();
    std::string text;
    char buffer[65536];
    ssize_t n;
    while ((n = recv(s, buffer, sizeof buffer, 0)) > 0) text.append(buffer, size_t(n));
    int whole[2] = {0, 0};
    for (size_t at = 0; at + 100 <= text.size(); at += 100) {
        whole[0] += text.compare(at, 100, std::string(99, 'x') + "\n") == 0;
        whole[1] += text.compare(at, 100, std::string(99, 'y') + "\n") == 0;
    }
    SEE(long(text.size()));
    SEE(whole[0]);
    SEE(whole[1]);
}

BEHAVIOUR(two_readers, "two threads in recv(): each piece reaches one of them");
void two_readers::a() {
    const int s = connected();
    std::atomic<int> total{0};
    const auto reads = [&] {
        char buffer[16];
        ssize_t n;
        while ((n = recv(s, buffer, sizeof buffer, 0)) > 0) total += int(n);
    };
    Thread one(reads), two(reads);
    one.sleeps();
    two.sleeps();
    step("both");
    one.join();
    two.join();
    SEE(int(total));
}
void two_readers::b() {
    const int s = connected();
    step("both");
    for (int i = 0; i < 50; i++) put(s, "0123456789");
    SEE(shutdown(s, SHUT_WR));
}

BEHAVIOUR(reader_and_writer, "one thread reads while another writes");
void reader_and_writer::a() {
    const int s = connected();
    std::string seen;
    std::thread reader([&] { seen = rest(s); });
    SEE(put(s, pattern(200000)));
    SEE(shutdown(s, SHUT_WR));
    reader.join();
    SEE(seen);
}
void reader_and_writer::b() { reader_and_writer::a(); }

BEHAVIOUR(cancelled_in_recv,
          "pthread_cancel() of a thread in recv(): its clean-up runs, the socket works on");
void cancelled_in_recv::a() {
    const int s = connected();
    bool cleaned = false;
    Thread reader([&] {
        pthread_cleanup_push([](void* flag) { *static_cast<bool*>(flag) = true; }, &cleaned);
        char c;
        recv(s, &c, 1, 0);
        pthread_cleanup_pop(0);
    });
    reader.sleeps();
    SEE(reader.cancel());
    SEE(reader.join());
    SEE(cleaned);
    step("cancelled");
    SEE(got(s, 5, MSG_WAITALL));
}
void cancelled_in_recv::b() {
    const int s = connected();
    step("cancelled");
    SEE(put(s, "hello"));
}
