#include "engine/internal_thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/deferred_signal.h"
#include "base/join.h"
#include "base/lease.h"
#include "base/log.h"
#include "base/own_fd.h"
#include "base/signals_blocked.h"
#include "base/sys.h"
#include "engine/rules_watch.h"
#include "engine/runtime.h"
#include "engine/shm_peers.h"
#include "stats/publisher.h"

namespace vma {
namespace {

// How often to look whether the program still polls its shards.
constexpr Duration kAttendEvery = Shard::kBusyFor;
constexpr Duration kAttendIdle =
    Duration::millis(250);  // threads of the program sleep on every shard, or nothing moves
constexpr Duration kHousekeeping = Duration::millis(500);
// A limit that lets no thread be made may be lifted, but every socket asks.
constexpr Duration kStartEvery = Duration::seconds(1);
// A turn takes microseconds, or as long as another process holds the lock of the shared tables; a loaded machine may not let
// the thread run at once.
constexpr Duration kStopWithin = Duration::seconds(2);

OwnFd g_control;
// VMA_CONF_WATCH. Never destroyed: the thread may outlive exit handlers.
RulesWatch& rules_watch() {
    alignas(RulesWatch) static unsigned char memory[sizeof(RulesWatch)];
    static RulesWatch* made = new (memory) RulesWatch;
    return *made;
}
pthread_t g_thread;
std::atomic<bool> g_running{false};
std::mutex g_start_lock;
Instant g_failed_at = Instant::never();  // the last attempt, under the lock
bool g_said = false;                     // that there is none
std::atomic<bool> g_stop{false};
std::atomic<uint32_t> g_ended{0};
bool g_unjoined = false;    // it had not ended in time when it was asked to
std::atomic<int> g_tid{0};  // 0: there is no thread
// When the thread will wake by itself; 0 while it is awake.
std::atomic<int64_t> g_wakes_at{0};
thread_local bool t_internal = false;

// What another thread wants done on this one. One at a time.
enum : uint32_t { kIdle, kWanted, kRunning, kDone };
struct Errand {
    std::mutex lock;
    std::atomic<uint32_t> state{kIdle};
    void (*what)(void*) = nullptr;
    void* context = nullptr;
};
Errand g_errand;

void run_errand() {
    uint32_t wanted = kWanted;
    if (g_errand.state.load(std::memory_order_relaxed) != kWanted ||
        !g_errand.state.compare_exchange_strong(wanted, kRunning))
        return;
    g_errand.what(g_errand.context);
    g_errand.state.store(kDone, std::memory_order_release);
    sys::futex(reinterpret_cast<uint32_t*>(&g_errand.state), 1 /* FUTEX_WAKE */, 1);
}

// One turn: returns the shards that need our eyes on their ring fd while we sleep.
struct Attendance {
    unsigned armed = 0;
    Shard* shards[Runtime::kMaxShards];
    bool active = false;  // some shard is being polled by the program
};

void attend(Attendance& out) {
    const Instant now = monotonic_now();
    for (Shard* shard : Runtime::shards()) {
        switch (shard->look(now)) {
            case Shard::Attended::busy:
                out.active = true;
                break;
            case Shard::Attended::by_sleeper:
                break;
            case Shard::Attended::by_nobody:
                shard->progress_all();
                out.shards[out.armed++] = shard;
                break;
        }
    }
}

void turn(Instant& next_housekeeping) {
    constexpr nfds_t kMostOthers = 96;
    pollfd fds[kMostOthers + Runtime::kMaxShards];
    nfds_t count = 0;
    fds[count++] = {g_control.fd(), POLLIN, 0};
    // A negative descriptor is none to ppoll.
    fds[count++] = {rules_watch().fd(), POLLIN, 0};
    Instant network_due = next_housekeeping;
    Runtime::for_each_space([&](NetSpace& space) {
        if (count + 4 > kMostOthers) return;
        fds[count++] = {space.monitor().fd(), POLLIN, 0};
        if (space.monitor().due() < network_due) network_due = space.monitor().due();
        if (space.policy()) {
            if (space.policy()->netfilter_fd() >= 0)
                fds[count++] = {space.policy()->netfilter_fd(), POLLIN, 0};
            if (space.policy()->xfrm_fd() >= 0)
                fds[count++] = {space.policy()->xfrm_fd(), POLLIN, 0};
        }
    });

    const nfds_t network_end = count;
    fds[count++] = {ShmPeers::wake_fd(), POLLIN, 0};
    Attendance attendance;
    attend(attendance);
    const Instant now = monotonic_now();
    const Instant look = now + (attendance.active ? kAttendEvery : kAttendIdle);
    Instant due = look < network_due ? look : network_due;
    for (Shard* shard : Runtime::shards())
        due = std::min({due, shard->deadline(), shard->pacing_deadline()});
    unsigned armed = 0;
    bool pending = false;
    for (; armed < attendance.armed; armed++) {
        if (!attendance.shards[armed]->arm()) {
            pending = true;
            attendance.shards[armed]->disarm();
            break;
        }
        fds[count++] = {attendance.shards[armed]->wake_fd(), POLLIN, 0};
    }
    if (!pending) {
        Duration left = due - now;
        if (left.ns < 0) left = {};
        const timespec ts{left.ns / 1000000000, left.ns % 1000000000};
        g_wakes_at.store(due.ns, std::memory_order_seq_cst);
        // A deadline set between the look above and the store did not poke: look again.
        bool earlier = false;
        for (Shard* shard : Runtime::shards())
            earlier |=
                shard->deadline() + InternalThread::kSlack < due || shard->pacing_deadline() < due;
        if (!earlier) sys::ppoll(fds, count, &ts);
        g_wakes_at.store(0, std::memory_order_relaxed);
    }
    for (unsigned i = 0; i < armed; i++) {
        attendance.shards[i]->disarm();
        attendance.shards[i]->progress_all();
    }
    if (fds[0].revents) {
        uint64_t drained;
        sys::read(g_control.fd(), &drained, sizeof drained);
        run_errand();
    }
    bool network = monotonic_now() >= network_due;
    if (fds[1].revents && rules_watch().process()) Runtime::reload_rules(true);
    for (nfds_t i = 2; i < network_end; i++) network |= fds[i].revents != 0;
    if (network) Runtime::follow_network();
    for (Shard* shard : Runtime::shards()) {
        shard->run_deadlines();
        shard->adapt(monotonic_now());
    }
    ShmPeers::turn();
    Runtime::tick();
    Runtime::reload_if_asked();
    if (monotonic_now() >= next_housekeeping) {
        next_housekeeping = monotonic_now() + kHousekeeping;
        Runtime::housekeeping();
        if (rules_watch().retry()) Runtime::reload_rules(true);
    }
}

// A file that changed between its first reading and the watch is read once more; unchanged rules cost nothing.
void watch_rules(const Options& options) {
    if (!options.conf_watch) return;
    const std::string& file = Runtime::snapshot().rules.context().file;
    if (const Status open = rules_watch().open(file); !open)
        vma_log(warning, "engine",
                "VMA_CONF_WATCH: cannot watch {} (errno {}{}); vma_stats --reload still works",
                file, open.error(),
                open.error() == EMFILE ? ", fs.inotify.max_user_instances" : "");
}

// By its "tasks" file, or that of a cgroup of version 2.
void join_cpuset(const std::string& directory) {
    if (directory.empty()) return;
    const std::string text = std::to_string(g_tid) + "\n";
    long result = -ENOENT;
    for (const char* name : {"/tasks", "/cgroup.threads"}) {
        const std::string path = directory + name;
        const long fd =
            sys::raw(SYS_openat, AT_FDCWD, sys::ptr(path.c_str()), O_WRONLY | O_CLOEXEC, 0);
        if (fd < 0) continue;
        result = sys::write(int(fd), text.data(), text.size());
        sys::close(int(fd));
        break;
    }
    if (result < 0)
        vma_log(warning, "engine",
                "VMA_INTERNAL_THREAD_CPUSET={}: the internal thread cannot join it (errno {})",
                directory, -result);
}

void* run(void*) {
    t_internal = true;
    g_tid = int(sys::raw(SYS_gettid));
    LibraryScope scope;  // every libc call made from here goes straight to libc
    pthread_setname_np(pthread_self(), "vma");
    join_cpuset(Runtime::options().internal_thread_cpuset);
    Instant next_housekeeping = monotonic_now() + kHousekeeping;
    if (rules_watch().active()) Runtime::reload_rules_if_changed();
    while (!g_stop.load(std::memory_order_acquire)) turn(next_housekeeping);
    g_tid = 0;
    g_ended.store(1, std::memory_order_release);
    sys::futex(reinterpret_cast<uint32_t*>(&g_ended), 1 /* FUTEX_WAKE */, 1);
    return nullptr;
}

// 0 or an errno.
int start_thread() {
    const int fd = sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) return -fd;
    if (const Status adopted = g_control.adopt(fd); !adopted) return adopted.error();
    g_stop = false;
    g_ended = 0;
    // The program's signals are the program's threads' business.
    SignalsBlocked blocked(SignalsBlocked::Libc::left);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 512 * 1024);
    const Options& options = Runtime::options();
    watch_rules(options);
    if (options.is_set(Opt::internal_thread_affinity) && options.internal_thread_affinity != "-1") {
        if (auto cpus = cpus_from_text(options.internal_thread_affinity)) {
            cpu_set_t set;
            CPU_ZERO(&set);
            for (unsigned cpu = 0; cpu < CPU_SETSIZE && cpu < kMaxCpus; cpu++)
                if (cpus->test(cpu)) CPU_SET(cpu, &set);
            if (CPU_COUNT(&set)) pthread_attr_setaffinity_np(&attr, sizeof set, &set);
        }
    }
    Lease::prepare();  // the last moment at which it may be cheap
    const int error = pthread_create(&g_thread, &attr, run, nullptr);
    pthread_attr_destroy(&attr);
    return error;
}

}  // namespace

bool InternalThread::start() {
    if (g_running.load(std::memory_order_acquire)) return true;
    std::lock_guard guard(g_start_lock);
    if (g_running.load(std::memory_order_relaxed)) return true;
    const Instant now = monotonic_now();
    if (!g_failed_at.is_never() && now < g_failed_at + kStartEvery) return false;
    const int error = start_thread();
    if (error == 0) {
        g_failed_at = Instant::never();
        g_running.store(true, std::memory_order_release);
        stats::will_publish();
        return true;
    }
    g_failed_at = now;
    g_control.reset();
    rules_watch().reset();
    if (!std::exchange(g_said, true))
        vma_log(warning, "engine",
                "the internal thread could not start (errno {}{}): sockets stay with the kernel",
                error, error == EAGAIN ? ", RLIMIT_NPROC or pids.max of the cgroup" : "");
    return false;
}

void InternalThread::poke() {
    if (!g_running.load(std::memory_order_acquire)) return;
    const uint64_t one = 1;
    sys::write(g_control.fd(), &one, sizeof one);
}

void InternalThread::wake_by(Instant at, Duration slack) {
    const int64_t wakes = g_wakes_at.load(std::memory_order_seq_cst);
    if (wakes != 0 && at + slack < Instant{wakes} && !t_internal) poke();
}

void InternalThread::stop() {
    if (!g_running.load(std::memory_order_acquire) || t_internal) return;
    g_stop = true;
    poke();
    const Instant deadline = monotonic_now() + kStopWithin;
    // A signal of the program ends a wait.
    while (g_ended.load(std::memory_order_acquire) == 0) {
        const Duration left = deadline - monotonic_now();
        if (left.ns <= 0) break;
        const timespec bound{left.ns / 1'000'000'000, left.ns % 1'000'000'000};
        sys::futex(reinterpret_cast<uint32_t*>(&g_ended), 0 /* FUTEX_WAIT */, 0, &bound);
    }
    g_unjoined = g_ended.load(std::memory_order_acquire) == 0;
    if (!g_unjoined) join(g_thread);
    g_running = false;
}

void InternalThread::wait_for_end() {
    if (std::exchange(g_unjoined, false)) join(g_thread);
}

void InternalThread::forget_in_child() {
    new (&g_start_lock) std::mutex;
    new (&g_errand) Errand;
    g_unjoined = false;
    g_failed_at = Instant::never();
    g_tid = 0;
    g_running = false;
    g_control.reset();
    rules_watch().reset();
}

bool InternalThread::perform(void (*what)(void*), void* context) {
    if (!g_running.load(std::memory_order_acquire) || t_internal) return false;
    std::lock_guard guard(g_errand.lock);
    g_errand.what = what;
    g_errand.context = context;
    g_errand.state.store(kWanted, std::memory_order_release);
    poke();
    const Instant deadline = monotonic_now() + kStopWithin;
    for (;;) {
        uint32_t state = g_errand.state.load(std::memory_order_acquire);
        if (state == kDone) break;
        // What has begun ends: `context` is in use.
        if (state == kWanted && monotonic_now() >= deadline &&
            g_errand.state.compare_exchange_strong(state, kIdle))
            return false;
        const timespec slice{0, 10'000'000};
        sys::futex(reinterpret_cast<uint32_t*>(&g_errand.state), 0 /* FUTEX_WAIT */, state, &slice);
    }
    g_errand.state.store(kIdle, std::memory_order_relaxed);
    return true;
}

int InternalThread::tid() {
    if (!g_running.load(std::memory_order_acquire)) return 0;
    // It may have been made just now.
    const Instant deadline = monotonic_now() + kStopWithin;
    while (g_tid.load(std::memory_order_acquire) == 0 && monotonic_now() < deadline)
        sys::raw(SYS_sched_yield);
    return g_tid.load(std::memory_order_acquire);
}

int InternalThread::control_fd() { return g_control.fd(); }

bool InternalThread::is_current() { return t_internal; }

}  // namespace vma
