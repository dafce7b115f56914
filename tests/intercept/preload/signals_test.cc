// Deferred handlers (process-model.md §7): the thread under test blocks inside the library in recv() on a socket of ours.
#include <setjmp.h>
#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "intercept/preload/preload.h"

// siginterrupt is deprecated, and still what old programs call.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

struct Seen {
    std::atomic<int> runs{0};
    std::atomic<int> depth{-1};
    std::atomic<bool> sent{false};
    siginfo_t info{};
    sigset_t mask{};
    std::vector<int> values;
};
Seen* g_seen = nullptr;
Pair* g_pair = nullptr;
sigjmp_buf g_jump;

void note(int, siginfo_t* info, void* context) {
    g_seen->depth = probe().depth();
    g_seen->info = *info;
    EXPECT_NE(context, nullptr);
    pthread_sigmask(SIG_SETMASK, nullptr, &g_seen->mask);
    if (info->si_code == SI_QUEUE) g_seen->values.push_back(info->si_value.sival_int);
    // A socket call in a handler is an ordinary one.
    g_seen->sent = send(g_pair->a, "h", 1, 0) == 1;
    char byte;
    if (recv(g_pair->b, &byte, 1, 0) != 1) g_seen->sent = false;
    g_seen->runs++;
}
void jump(int) { siglongjmp(g_jump, 1); }
void plain(int) { g_seen->runs++; }

class Deferred : public testing::Test {
  protected:
    void SetUp() override {
        g_seen = &seen;
        g_pair = &pair;
        thread_tid = 0;
    }
    void TearDown() override {
        signal(SIGUSR1, SIG_DFL);
        signal(SIGUSR2, SIG_DFL);
        signal(SIGRTMIN, SIG_DFL);
    }
    void install(int signal, int flags, std::vector<int> masked = {}) {
        struct sigaction act {};
        act.sa_sigaction = note;
        act.sa_flags = flags | SA_SIGINFO;
        sigemptyset(&act.sa_mask);
        for (int m : masked) sigaddset(&act.sa_mask, m);
        ASSERT_EQ(sigaction(signal, &act, nullptr), 0);
    }
    // Blocks in recv on pair.a; `result`, `error` and the mask afterwards are left for the test.
    void start() {
        thread = std::thread([this] {
            thread_tid = gettid();
            char byte = 0;
            errno = 0;
            result = recv(pair.a, &byte, 1, 0);
            error = errno;
            data = byte;
            pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
            depth_after = probe().depth();
        });
        while (thread_tid == 0) std::this_thread::yield();
        ASSERT_TRUE(wait_asleep(thread_tid));
    }
    void wait_runs(int n) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (seen.runs < n && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        ASSERT_EQ(seen.runs, n);
    }
    Pair pair;
    Seen seen;
    std::thread thread;
    std::atomic<int> thread_tid{0};
    ssize_t result = -2;
    int error = 0;
    char data = 0;
    int depth_after = -1;
    sigset_t mask_after{};
};

TEST_F(Deferred, InterruptsWithoutSaRestart) {
    install(SIGUSR1, 0);
    start();
    pthread_kill(thread.native_handle(), SIGUSR1);
    thread.join();
    EXPECT_EQ(result, -1);
    EXPECT_EQ(error, EINTR);
    EXPECT_EQ(seen.runs, 1);
    EXPECT_EQ(seen.depth, 0);
    EXPECT_TRUE(seen.sent);
    EXPECT_EQ(depth_after, 0);
    EXPECT_FALSE(sigismember(&mask_after, SIGUSR1));
    EXPECT_FALSE(sigismember(&mask_after, SIGUSR2));
}

TEST_F(Deferred, RestartsWithSaRestart) {
    install(SIGUSR1, SA_RESTART);
    start();
    for (int i = 1; i <= 3; i++) {
        pthread_kill(thread.native_handle(), SIGUSR1);
        wait_runs(i);
        ASSERT_TRUE(wait_asleep(thread_tid));
    }
    ASSERT_EQ(send(pair.b, "x", 1, 0), 1);
    thread.join();
    EXPECT_EQ(result, 1);
    EXPECT_EQ(data, 'x');
    EXPECT_EQ(error, 0) << "errno is untouched on success";
    EXPECT_EQ(seen.depth, 0);
}

TEST_F(Deferred, KeepsSiginfoAndEmulatesMasks) {
    install(SIGUSR1, 0, {SIGUSR2, SIGHUP});
    start();
    sigval value{};
    value.sival_int = 4711;
    pthread_sigqueue(thread.native_handle(), SIGUSR1, value);
    thread.join();
    EXPECT_EQ(seen.info.si_signo, SIGUSR1);
    EXPECT_EQ(seen.info.si_code, SI_QUEUE);
    EXPECT_EQ(seen.info.si_value.sival_int, 4711);
    EXPECT_EQ(seen.info.si_pid, getpid());
    EXPECT_EQ(seen.info.si_uid, getuid());
    EXPECT_TRUE(sigismember(&seen.mask, SIGUSR1));
    EXPECT_TRUE(sigismember(&seen.mask, SIGUSR2));
    EXPECT_TRUE(sigismember(&seen.mask, SIGHUP));
    EXPECT_FALSE(sigismember(&seen.mask, SIGTERM));
    EXPECT_FALSE(sigismember(&mask_after, SIGUSR1));
    EXPECT_FALSE(sigismember(&mask_after, SIGHUP));
}

TEST_F(Deferred, NodeferAndResethand) {
    install(SIGUSR1, int(SA_NODEFER | SA_RESETHAND));
    start();
    pthread_kill(thread.native_handle(), SIGUSR1);
    thread.join();
    EXPECT_EQ(seen.runs, 1);
    EXPECT_FALSE(sigismember(&seen.mask, SIGUSR1));
    struct sigaction now {};
    ASSERT_EQ(sigaction(SIGUSR1, nullptr, &now), 0);
    EXPECT_EQ(now.sa_handler, SIG_DFL);
}

TEST_F(Deferred, RealTimeSignalsQueueAndStandardOnesMerge) {
    install(SIGRTMIN, SA_RESTART);
    start();
    for (int i = 0; i < 20; i++) {
        sigval value{};
        value.sival_int = i;
        ASSERT_EQ(pthread_sigqueue(thread.native_handle(), SIGRTMIN, value), 0);
    }
    wait_runs(20);
    ASSERT_EQ(send(pair.b, "x", 1, 0), 1);
    thread.join();
    EXPECT_EQ(result, 1);
    ASSERT_EQ(seen.values.size(), 20u);
    for (int i = 0; i < 20; i++) EXPECT_EQ(seen.values[size_t(i)], i);
}

// Two signals that one ppoll unblocks together: the kernel stacks two frames on top of the library.
TEST_F(Deferred, TwoSignalsDeliveredTogether) {
    install(SIGUSR1, 0);
    install(SIGUSR2, 0);
    sigset_t both, before, after, open;
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigaddset(&both, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &both, &before);
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    open = before;
    for (int round = 1; round <= 50; round++) {
        raise(SIGUSR1);
        raise(SIGUSR2);
        pollfd p{pair.a, POLLIN, 0};
        errno = 0;
        ASSERT_EQ(ppoll(&p, 1, nullptr, &open), -1);
        ASSERT_EQ(errno, EINTR);
        pthread_sigmask(SIG_SETMASK, nullptr, &after);
        ASSERT_EQ(memcmp(&after, &blocked, 8), 0) << "the caller's mask is back";
        ASSERT_EQ(seen.runs, 2 * round) << "both were delivered, although blocked again now";
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    EXPECT_EQ(probe().depth(), 0);
}

TEST_F(Deferred, HandlerMayLongjmpOutOfTheCall) {
    struct sigaction act {};
    act.sa_handler = jump;
    ASSERT_EQ(sigaction(SIGUSR1, &act, nullptr), 0);
    std::atomic<int> tid{0};
    std::thread victim([&] {
        sigset_t mask;
        if (sigsetjmp(g_jump, 1) == 0) {
            tid = gettid();
            char byte;
            recv(pair.a, &byte, 1, 0);
            ADD_FAILURE() << "recv returned";
        }
        EXPECT_EQ(probe().depth(), 0);
        const unsigned asks = probe().asks;
        EXPECT_EQ(send(pair.b, "y", 1, 0), 1);
        char byte = 0;
        EXPECT_EQ(recv(pair.a, &byte, 1, 0), 1);
        EXPECT_EQ(probe().asks, asks + 2) << "still served by us";
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        EXPECT_FALSE(sigismember(&mask, SIGUSR1));
        EXPECT_FALSE(sigismember(&mask, SIGUSR2));
    });
    while (tid == 0) std::this_thread::yield();
    ASSERT_TRUE(wait_asleep(tid));
    pthread_kill(victim.native_handle(), SIGUSR1);
    victim.join();
}

// A signal between the last look at pending_signal() and the sleeping system call must not be slept over.
TEST_F(Deferred, NoSignalIsSleptOver) {
    struct sigaction act {};
    act.sa_handler = plain;
    ASSERT_EQ(sigaction(SIGUSR1, &act, nullptr), 0);
    constexpr int kRounds = 3000;
    std::atomic<int> entered{0}, left{0};
    std::thread waiter([&] {
        for (int i = 1; i <= kRounds; i++) {
            entered = i;
            char byte;
            // The signal may hit before recv is entered: then a datagram that the sender adds later ends the wait.
            recv(pair.a, &byte, 1, 0);
            left = i;
        }
    });
    int slept_over = 0;
    for (int i = 1; i <= kRounds; i++) {
        while (entered < i) std::this_thread::yield();
        for (int spin = 0; spin < (i * 37) % 2000; spin++) __asm__ volatile("");
        const int before = seen.runs;
        pthread_kill(waiter.native_handle(), SIGUSR1);
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (seen.runs == before && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
        if (seen.runs == before) slept_over++;
        if (left < i) {
            const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
            while (left < i && std::chrono::steady_clock::now() < soon) std::this_thread::yield();
            if (left < i) send(pair.b, "z", 1, 0);
        }
        while (left < i) std::this_thread::yield();
        char drain;
        while (recv(pair.a, &drain, 1, MSG_DONTWAIT) == 1) {
        }
    }
    waiter.join();
    EXPECT_EQ(slept_over, 0);
}

TEST_F(Deferred, SiginterruptDecidesForSignal) {
    ASSERT_NE(signal(SIGUSR1, plain), SIG_ERR);
    ASSERT_EQ(siginterrupt(SIGUSR1, 1), 0);
    start();
    pthread_kill(thread.native_handle(), SIGUSR1);
    thread.join();
    EXPECT_EQ(result, -1);
    EXPECT_EQ(error, EINTR);
    ASSERT_EQ(siginterrupt(SIGUSR1, 0), 0);
    struct sigaction now {};
    ASSERT_EQ(sigaction(SIGUSR1, nullptr, &now), 0);
    EXPECT_TRUE(now.sa_flags & SA_RESTART);
    EXPECT_EQ(now.sa_handler, plain);
}

// ---- Faults inside the library: the handler runs at once; leaving by longjmp does not lock the thread out.

sigjmp_buf g_fault;
void fault(int) { siglongjmp(g_fault, 1); }

__attribute__((noinline)) int deep(int n, int fd) {
    char room[512];
    memset(room, n, sizeof(room));
    __asm__ volatile("" : : "r"(room) : "memory");
    if (n > 0) return deep(n - 1, fd) + (room[0] == n ? 0 : 1);
    int value = 0;
    socklen_t len = sizeof(value);
    const unsigned asks = probe().asks;
    EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len), 0);
    return probe().asks == asks + 1 ? value : -1;
}

void fault_and_go_on(int fd, int flags, int depth) {
    struct sigaction act {};
    struct sigaction old {};
    act.sa_handler = fault;
    act.sa_flags = flags;
    ASSERT_EQ(sigaction(SIGSEGV, &act, &old), 0);
    if (sigsetjmp(g_fault, 1) == 0) {
        int value;
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, reinterpret_cast<socklen_t*>(8));
        ADD_FAILURE() << "no fault";
    }
    EXPECT_EQ(deep(depth, fd), SOCK_DGRAM);
    EXPECT_EQ(probe().depth(), 0);
    ASSERT_EQ(sigaction(SIGSEGV, &old, nullptr), 0);
}

TEST_F(Deferred, FaultInsideTheLibraryLeftByLongjmp) {
    for (int depth = 0; depth < 30; depth++) fault_and_go_on(pair.a, 0, depth);
}

TEST_F(Deferred, FaultOnAnAlternateStack) {
    static char stack[65536];
    stack_t alternate{};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof(stack);
    stack_t old{};
    ASSERT_EQ(sigaltstack(&alternate, &old), 0);
    for (int depth : {0, 20}) fault_and_go_on(pair.a, SA_ONSTACK, depth);
    ASSERT_EQ(sigaltstack(&old, nullptr), 0);
}

// ---- What the program sees of its dispositions.

TEST(Disposition, AnswersAreTheProgramsOwn) {
    struct sigaction act {};
    act.sa_sigaction = note;
    act.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&act.sa_mask);
    sigaddset(&act.sa_mask, SIGHUP);
    ASSERT_EQ(sigaction(SIGUSR1, &act, nullptr), 0);
    struct sigaction old {};
    struct sigaction two {};
    two.sa_handler = plain;
    ASSERT_EQ(sigaction(SIGUSR1, &two, &old), 0);
    EXPECT_EQ(old.sa_sigaction, note);
    EXPECT_EQ(old.sa_flags & (SA_SIGINFO | SA_ONSTACK), SA_SIGINFO | SA_ONSTACK);
    EXPECT_TRUE(sigismember(&old.sa_mask, SIGHUP));
    EXPECT_EQ(signal(SIGUSR1, SIG_IGN), plain);
    EXPECT_EQ(signal(SIGUSR1, SIG_DFL), SIG_IGN);
    struct sigaction* const same = &two;
    ASSERT_EQ(sigaction(SIGUSR1, &two, same), 0) << "act and old may be one object";
    EXPECT_EQ(two.sa_handler, SIG_DFL);
    ASSERT_EQ(sigaction(SIGUSR1, nullptr, &old), 0);
    EXPECT_EQ(old.sa_handler, plain);
    EXPECT_EQ(old.sa_flags & SA_SIGINFO, 0);
    errno = 0;
    EXPECT_EQ(sigaction(SIGKILL, &act, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(signal(SIGKILL, plain), SIG_ERR);
    EXPECT_EQ(signal(SIGUSR1, SIG_DFL), plain);
}

TEST(Disposition, TransparentOutsideTheLibrary) {
    Seen seen;
    Pair pair;
    g_seen = &seen;
    g_pair = &pair;
    signal(SIGUSR1, plain);
    raise(SIGUSR1);
    EXPECT_EQ(seen.runs, 1);
    // A blocking call that is the kernel's keeps the kernel's own EINTR.
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    siginterrupt(SIGUSR1, 1);
    std::atomic<int> tid{0};
    ssize_t result = 0;
    int error = 0;
    std::thread reader([&] {
        tid = gettid();
        char byte;
        result = read(pipe_fds[0], &byte, 1);
        error = errno;
    });
    while (tid == 0) std::this_thread::yield();
    ASSERT_TRUE(wait_asleep(tid));
    pthread_kill(reader.native_handle(), SIGUSR1);
    reader.join();
    EXPECT_EQ(result, -1);
    EXPECT_EQ(error, EINTR);
    EXPECT_EQ(seen.runs, 2);
    siginterrupt(SIGUSR1, 0);
    signal(SIGUSR1, SIG_DFL);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

}  // namespace
