// What takes sockets out of the library's sight or away from where they belong: io_uring, other network namespaces, and loops
// that close every descriptor.
#include <linux/io_uring.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <atomic>

#include "differential/process_words.h"
#include "differential/runtime.h"

namespace behave {
namespace {

// One request at a time, through the system calls themselves: no library.
class Uring {
  public:
    Uring() {
        io_uring_params parameters{};
        fd_ = int(syscall(SYS_io_uring_setup, 4, &parameters));
        if (fd_ < 0) give_up("io_uring_setup " + error_text());
        const size_t sq = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
        const size_t cq = parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe);
        bytes_ = std::max(sq, cq);
        rings_ = map(bytes_, IORING_OFF_SQ_RING);
        entries_ = static_cast<io_uring_sqe*>(map(kSqes, IORING_OFF_SQES));
        auto at = [&](uint32_t offset) {
            return reinterpret_cast<unsigned*>(static_cast<char*>(rings_) + offset);
        };
        sq_tail_ = at(parameters.sq_off.tail);
        sq_mask_ = *at(parameters.sq_off.ring_mask);
        sq_array_ = at(parameters.sq_off.array);
        cq_head_ = at(parameters.cq_off.head);
        cq_mask_ = *at(parameters.cq_off.ring_mask);
        completions_ = reinterpret_cast<io_uring_cqe*>(at(parameters.cq_off.cqes));
    }
    ~Uring() {
        munmap(rings_, bytes_);
        munmap(entries_, kSqes);
        close(fd_);
    }
    Uring(const Uring&) = delete;

    // The result of one request, a length or a negative error; waits for it.
    long run(uint8_t operation, int fd, void* memory, size_t bytes) {
        const unsigned tail = *sq_tail_, slot = tail & sq_mask_;
        entries_[slot] = {};
        entries_[slot].opcode = operation;
        entries_[slot].fd = fd;
        entries_[slot].addr = uint64_t(memory);
        entries_[slot].len = unsigned(bytes);
        sq_array_[slot] = slot;
        std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
        if (syscall(SYS_io_uring_enter, fd_, 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0) != 1)
            give_up("io_uring_enter " + error_text());
        const unsigned head = *cq_head_;
        const long result = completions_[head & cq_mask_].res;
        std::atomic_ref(*cq_head_).store(head + 1, std::memory_order_release);
        return result;
    }
    long send(int fd, std::string text) {
        return run(IORING_OP_SEND, fd, text.data(), text.size());
    }
    std::string receive(int fd) {
        std::string text(64, 0);
        const long n = run(IORING_OP_RECV, fd, text.data(), text.size());
        return n < 0 ? strerrorname_np(int(-n)) : text.substr(0, size_t(n));
    }

  private:
    static constexpr size_t kSqes = 4 * sizeof(io_uring_sqe);
    void* map(size_t bytes, off_t offset) {
        void* p =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, offset);
        if (p == MAP_FAILED) give_up("mmap of an io_uring " + error_text());
        return p;
    }

    int fd_;
    size_t bytes_;
    void* rings_;
    io_uring_sqe* entries_;
    unsigned *sq_tail_, *sq_array_, *cq_head_;
    unsigned sq_mask_, cq_mask_;
    io_uring_cqe* completions_;
};

}  // namespace

BEHAVIOUR(uring_on_connection, "io_uring requests on a connection that was used by calls before");
void uring_on_connection::a() {
    const int s = connected();
    SEE(put(s, "unread"));
    step("unread");
    until(s, POLLIN);
    Uring uring;
    SEE(uring.receive(s));
    SEE(uring.send(s, "by request"));
    SEE(got(s, 10, MSG_WAITALL));
    SEE(put(s, "by call"));
    SEE(got(s, 7, MSG_WAITALL));
    on_kernel(s);
    const int later = tcp();
    step("listening");
    SEE(connect_to(later, "b", 1));
    on_kernel(later);
    SEE(uring.send(later, "later"));
    SEE(uring.receive(later));
    SEE(shutdown(later, SHUT_WR));
    SEE(shutdown(s, SHUT_WR));
    SEE(uring.receive(s));
}
void uring_on_connection::b() {
    const int s = connected();
    step("unread");
    for (const char* text : {"unread", "by request", "by call"}) {
        SEE(got(s, strlen(text), MSG_WAITALL));
        SEE(put(s, text));
    }
    const int listener = listening(1);
    step("listening");
    const int later = accept(listener, nullptr, nullptr);
    SEE(got(later, 5, MSG_WAITALL));
    SEE(put(later, "later"));
    SEE(rest(later));
    SEE(rest(s));
    close(s);
}

BEHAVIOUR(uring_on_datagrams, "io_uring requests on a UDP socket: what waits there is found");
void uring_on_datagrams::a() {
    const int s = udp_pair();
    step("pair");
    SEE(until(s, POLLIN));
    Uring uring;
    SEE(uring.receive(s));
    SEE(uring.send(s, "answer"));
    SEE(got(s));
    step("over");
}
void uring_on_datagrams::b() {
    const int s = udp_pair();
    SEE(put(s, "waits"));
    step("pair");
    SEE(got(s));
    SEE(put(s, "more"));
    step("over");
}

BEHAVIOUR(other_namespace,
          "a thread in another network namespace: its new sockets are there, its old ones stay");
void other_namespace::a() {
    const int s = connected();
    Thread thread([&] {
        const int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
        SEE(unshare(CLONE_NEWNET));
        SEE(echoed(s, "from abroad"));
        const int t = tcp(), u = udp();
        const sockaddr_in b = at("b", port());
        SEE(connect(t, raw(b), sizeof b));
        SEE(sendto(u, "x", 1, 0, raw(b), sizeof b));
        SEE(setns(home, CLONE_NEWNET));
        SEE(connect(t, raw(b), sizeof b));
        close(t);
        close(u);
        close(home);
    });
    SEE(thread.join());
    SEE(echoed(s, "at home"));
    const int later = connected(1);
    SEE(echoed(later, "later"));
    SEE(shutdown(later, SHUT_WR));
    SEE(shutdown(s, SHUT_WR));
}
void other_namespace::b() {
    const int s = connected();
    for (ssize_t n = 1; n > 0;) {
        char buffer[64];
        n = recv(s, buffer, sizeof buffer, 0);
        if (n > 0) put(s, std::string(buffer, size_t(n)));
        if (std::string(buffer, size_t(std::max<ssize_t>(n, 0))) == "at home") echo(1);
    }
}

BEHAVIOUR(close_loop, "a loop that closes every descriptor, as daemons do when they start");
void close_loop::a() {
    const int s = connected(), t = connected(1);
    const int u = udp();
    const int ep = epoll_create1(0);
    for (int fd = s; fd < 200; fd++) close(fd);  // the harness has its own from there
    for (int fd = 256; fd < 65536; fd++) close(fd);
    SEE(put(s, "x"));
    SEE(put(t, "x"));
    SEE(polled(u));
    SEE(fcntl(ep, F_GETFD));
    SEE(tcp() == s);
    close(s);
    const int later = connected(2);
    SEE(later == s);
    SEE(echoed(later, "goes on"));
    SEE(shutdown(later, SHUT_WR));
}
void close_loop::b() {
    const int s = connected(), t = connected(1);
    SEE(rest(s));
    SEE(rest(t));
    echo(2);
}

}  // namespace behave
