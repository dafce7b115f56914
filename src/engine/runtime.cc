#include "engine/runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/own_fd.h"
#include "base/sys.h"
#include "config/banner.h"
#include "config/warnings.h"
#include "dev/packet/packet_ring.h"
#include "dev/shm/shm_ring.h"
#include "engine/bereaved.h"
#include "engine/frame_log.h"
#include "engine/internal_thread.h"
#include "engine/placement.h"
#include "engine/segfault.h"
#include "engine/shm_peers.h"
#include "engine/surroundings.h"
#include "stats/publisher.h"

extern "C" char** environ;

namespace vma {
namespace {

constexpr unsigned kMaxSpaces = 16;

// Plain statics, never destroyed: threads of the program may still be in calls while exit handlers run.
struct State {
    std::mutex control;
    std::atomic<const Snapshot*> snapshot{nullptr};
    std::vector<std::shared_ptr<const Snapshot>>
        kept;  // readers hold plain references: snapshots stay
    NetSpace* spaces[kMaxSpaces] = {};
    std::atomic<unsigned> space_count{0};
    Shard* shards[Runtime::kMaxShards] = {};
    Lanes lanes;
    std::atomic<unsigned> shard_count{0};
    std::atomic<bool> heavy{false};
    std::atomic<void (*)()> tick{nullptr};
    Shard* shm_shard = nullptr;
    shm::ShmRing* shm_ring = nullptr;  // the shard's
    bool shm_failed = false;
    Bereaved bereaved;        // internal thread
    std::vector<Note> notes;  // of the configuration, logged with the banner
    std::string reload_said;  // by the last reload
    std::atomic<bool> stopped{false};
};

State& state() {
    alignas(State) static unsigned char memory[sizeof(State)];
    static State* made = new (memory) State;
    return *made;
}

std::string program_name() {
    const std::string_view name =
        program_invocation_short_name ? program_invocation_short_name : "";
    return std::string(name);
}

std::string command_line() {
    std::string text = read_proc("/proc/self/cmdline", 1024);
    for (char& c : text)
        if (c == 0) c = ' ';
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return text;
}

std::string time_text() {
    const time_t now = time(nullptr);
    tm parts;
    char text[64] = "";
    if (gmtime_r(&now, &parts)) strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y UTC", &parts);
    return text;
}

int64_t now_for_log() { return monotonic_now().ns; }

void start_log(const Options& options) {
    LogConfig config;
    config.level = options.tracelevel;
    config.details = options.log_details;
    config.now_ns = now_for_log;
    config.fd = 2;
    if (!options.log_file.empty()) {
        const int fd = int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr(options.log_file.c_str()),
                                    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
        // Never given back: what runs after the exit handlers logs, too, and the number could be the program's by then.
        OwnFd* const file = new OwnFd;
        if (fd >= 0 && file->adopt(fd)) {
            config.fd = file->fd();
            config.file = file;
        } else {
            delete file;
            state().notes.push_back(
                {LogLevel::warning, "VMA_LOG_FILE: cannot open '" + options.log_file + "' (errno " +
                                        std::to_string(-fd) + "), logging to standard error"});
        }
    }
    config.callback = reinterpret_cast<LogCallback>(options.log_cb_func_ptr);
    config.colours = options.log_colors && config.callback == nullptr && isatty(config.fd);
    log_configure(config);
    frame_log_level_changed();
}

// The key that namespace_of() would see for a socket made now by this thread.
Result<uint64_t> namespace_of_this_thread() {
    const int fd = sys::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return Errno{-fd};
    Result<uint64_t> key = namespace_key(fd);
    sys::close(fd);
    return key;
}

void publish(std::shared_ptr<const Snapshot> snapshot) {
    State& s = state();
    s.kept.push_back(std::move(snapshot));
    s.snapshot.store(s.kept.back().get(), std::memory_order_release);
}

}  // namespace

bool Runtime::start(bool secure) {
    State& s = state();
    if (s.snapshot.load(std::memory_order_acquire)) return true;
    std::lock_guard guard(s.control);
    if (s.snapshot.load(std::memory_order_relaxed)) return true;
    LoadContext context;
    context.parse.pid = sys::getpid();
    context.parse.secure = secure;
    context.parse.max_level = kMaxLogLevel;  // this file's: libvma-debug.so has one of its own
    context.program = program_name();
    LoadedSnapshot loaded = load_snapshot(environment_span(environ), context);
    s.notes = std::move(loaded.notes);
    start_log(loaded.snapshot->options);
    publish(std::move(loaded.snapshot));
    return true;
}

bool Runtime::started() { return state().snapshot.load(std::memory_order_acquire) != nullptr; }
const Snapshot& Runtime::snapshot() { return *state().snapshot.load(std::memory_order_acquire); }
const Options& Runtime::options() { return snapshot().options; }

Status Runtime::add_rule(const char* text) {
    State& s = state();
    std::lock_guard guard(s.control);
    LoadedSnapshot loaded = vma::add_rule(s.kept.back(), text);
    for (const Note& note : loaded.notes) log_text(note.level, note.text);
    if (!loaded.rules_ok) return Errno{EINVAL};
    publish(std::move(loaded.snapshot));
    return {};
}

// Lock `control` held.
void Runtime::reload_locked(bool by_itself) {
    State& s = state();
    LoadedSnapshot loaded = vma::reload_rules(s.kept.back());
    std::string said;
    for (const Note& note : loaded.notes) said += (said.empty() ? "" : "; ") + note.text;
    if (!by_itself || loaded.rules_ok || said != s.reload_said)
        for (const Note& note : loaded.notes) log_text(note.level, note.text);
    if (loaded.snapshot != s.kept.back()) publish(loaded.snapshot);
    stats::set_rules({loaded.snapshot->generation, uint32_t(loaded.snapshot->rules.size()),
                      loaded.rules_ok, said});
    s.reload_said = std::move(said);
}

void Runtime::reload_rules(bool by_itself) {
    std::lock_guard guard(state().control);
    reload_locked(by_itself);
}

void Runtime::reload_rules_if_changed() {
    State& s = state();
    std::lock_guard guard(s.control);
    if (vma::reload_rules(s.kept.back()).snapshot != s.kept.back()) reload_locked(true);
}

void Runtime::reload_if_asked() {
    stats::look();
    if (stats::asked(stats::Verb::reload) == 0 || !started()) return;
    std::lock_guard guard(state().control);
    if (const uint64_t asked = stats::asked(stats::Verb::reload)) {
        reload_locked(false);
        stats::answer(stats::Verb::reload, asked);
    }
}

void Runtime::heavy_start() {
    State& s = state();
    if (s.heavy.load(std::memory_order_acquire)) return reload_if_asked();
    std::lock_guard guard(s.control);
    if (s.heavy.load(std::memory_order_relaxed)) return;
    const LineSink sink = [](LogLevel level, std::string_view line) { log_text(level, line); };
    BannerFacts facts;
    facts.command_line = command_line();
    facts.pid = sys::getpid();
    facts.current_time = time_text();
    utsname name;
    if (uname(&name) == 0) {
        facts.kernel = name.release;
        facts.architecture = name.machine;
        facts.node = name.nodename;
    }
    print_banner(options(), facts, sink);
    for (const Note& note : s.notes) log_text(note.level, note.text);
    s.notes.clear();
    warn_at_start(options(), sink);
    if (options().handle_segfault) print_backtrace_on_segfault();
    // Only this needs the thread before a socket is decided.
    if (options().conf_watch) InternalThread::start();
    s.heavy.store(true, std::memory_order_release);
}

NetSpace* Runtime::namespace_of(int socket_fd, Reason* why) {
    State& s = state();
    // The library cannot begin its work. Whoever would rather have no program than one on the kernel has said so.
    const auto not_started = [&](Reason reason) -> NetSpace* {
        *why = reason;
        if (options().exception_handling > -2) return nullptr;
        vma_log(error, "engine",
                "the library cannot start ({}): the program ends (VMA_EXCEPTION_HANDLING=-2)",
                reason_name(reason));
        sys::raw(SYS_exit_group, 255);
        return nullptr;
    };
    const Result<uint64_t> key = namespace_key(socket_fd);
    if (!key) return not_started(Reason::init_failed);
    for (unsigned i = 0; i < s.space_count.load(std::memory_order_acquire); i++)
        if (s.spaces[i]->key() == *key) return s.spaces[i];

    std::lock_guard guard(s.control);
    const unsigned count = s.space_count.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < count; i++)
        if (s.spaces[i]->key() == *key) return s.spaces[i];
    if (count == kMaxSpaces) {
        *why = Reason::network_namespace;
        return nullptr;
    }
    if (!InternalThread::start()) return not_started(Reason::no_thread);
    auto monitor = NetworkMonitor::of_this_namespace();
    if (!monitor) {
        vma_log(
            warning, "engine",
            "cannot read the network state over netlink (errno {}): sockets stay with the kernel",
            monitor.error());
        return not_started(Reason::init_failed);
    }
    if ((*monitor)->key() != *key) {
        // The socket was made elsewhere (passed in, or the thread has moved since).
        *why = Reason::network_namespace;
        return nullptr;
    }
    auto* space = new NetSpace;
    space->monitor_ = *monitor;
    if (!options().ignore_firewall) {
        auto policy = KernelPolicy::open();
        if (policy) {
            space->policy_ = std::move(*policy);
            if (const std::string notes = space->policy_->notes(); !notes.empty())
                vma_log(debug, "engine", "kernel policy: {}", notes);
        }
    }
    s.spaces[count] = space;
    s.space_count.store(count + 1, std::memory_order_release);
    InternalThread::poke();
    return space;
}

std::span<Shard* const> Runtime::shards() {
    State& s = state();
    return {s.shards, s.shard_count.load(std::memory_order_acquire)};
}

Lanes& Runtime::lanes() { return state().lanes; }

bool NetSpace::can_carry_ring(const Interface& interface) {
    // Those over several cards; those whose routes are not the others'; those that have a card together by their address: of
    // macvlans connections that were taken over stood still, rarely. And VLANs whose frames keep their tag, behind which the hook
    // would not find the header.
    constexpr std::string_view kKernels[] = {"bond",    "team",   "vrf",   "macvlan",
                                             "macvtap", "ipvlan", "ipvtap"};
    return interface.type == 1 && interface.up && !interface.loopback() && interface.master == 0 &&
           !interface.tagged && std::ranges::find(kKernels, interface.kind) == std::end(kKernels);
}

bool NetSpace::has(const Shard& shard) {
    if (shard.lane() == Shard::kEveryLane) return false;
    Entry* const entry = find(shard.ifindex());
    return entry && entry->shards[shard.lane()].load(std::memory_order_acquire) == &shard;
}

NetSpace::Entry* NetSpace::find(int ifindex) {
    const unsigned count = entry_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count; i++)
        if (entries_[i].ifindex == ifindex) return &entries_[i];
    return nullptr;
}

Shard* NetSpace::shard(int ifindex, unsigned lane, Reason* why) {
    const auto open_one = [&](Entry* entry) {
        return entry ? entry->shards[lane].load(std::memory_order_acquire) : nullptr;
    };
    const auto unless_lost = [&](Shard* open) {
        if (!open->lost()) return open;
        *why = Reason::device_lost;
        return static_cast<Shard*>(nullptr);
    };
    if (Shard* open = open_one(find(ifindex))) return unless_lost(open);
    State& s = state();
    std::lock_guard guard(s.control);
    Entry* entry = find(ifindex);
    if (Shard* open = open_one(entry)) return unless_lost(open);
    if (entry && entry->first && entry->first->lost()) return unless_lost(entry->first);
    // What the sockets of this lane have then.
    Shard* const instead = entry ? entry->first : nullptr;
    const auto none = [&](Reason reason) {
        *why = instead ? Reason::none : reason;
        return instead;
    };
    if (entry && entry->failed_generation == generation()) return none(entry->failed);
    const auto view = monitor_->view();
    const Interface* interface = view->interface(ifindex);
    if (s.stopped.load(std::memory_order_relaxed)) return none(Reason::exiting);
    if (interface == nullptr || !can_carry_ring(*interface))
        return none(Reason::interface_unsupported);
    const unsigned count = entry_count_.load(std::memory_order_relaxed);
    const unsigned shards = s.shard_count.load(std::memory_order_relaxed);
    if ((entry == nullptr && count == kMaxInterfaces) || shards == Runtime::kMaxShards)
        return none(Reason::memory);
    // A ring's socket is of the namespace in which it is opened: this thread may have moved. Another may not have.
    if (const Result<uint64_t> here = namespace_of_this_thread(); here && *here != key())
        return none(Reason::network_namespace);
    std::string text;
    Shard* shard = open_shard_on(*interface, lane, Runtime::options(), why, &text);
    if (entry == nullptr) {
        entry = &entries_[count];
        entry->ifindex = ifindex;
        entry_count_.store(count + 1, std::memory_order_release);
    }
    if (shard == nullptr) {
        entry->failed = *why;
        entry->failed_generation = generation();
        if (instead)
            text = "interface " + interface->name +
                   ": no further ring, its sockets share the first: " + text;
        else if (*why == Reason::capability)
            text = missing_capability_line({interface->name, text});
        else
            text = "interface " + interface->name +
                   ": no ring, its sockets stay with the kernel: " + text;
        vma_log(warning, "engine", "{}", text);
        return none(*why);
    }
    s.shards[shards] = shard;
    s.shard_count.store(shards + 1, std::memory_order_release);
    if (instead == nullptr) {
        entry->first = shard;
        warn_of_arp_flux(*view, *interface);
    }
    entry->shards[lane].store(shard, std::memory_order_release);
    vma_log(debug, "engine", "interface {}: {} ring {} open", interface->name, shard->ring_kind(),
            lane);
    InternalThread::poke();
    return shard;
}

Shard* Runtime::shm_shard(shm::ShmRing** ring) {
    State& s = state();
    std::lock_guard guard(s.control);
    if (s.shm_shard != nullptr || s.shm_failed) {
        *ring = s.shm_ring;
        return s.shm_shard;
    }
    const unsigned shards = s.shard_count.load(std::memory_order_relaxed);
    if (s.stopped.load(std::memory_order_relaxed) || shards == kMaxShards) return nullptr;
    Reason why = Reason::none;
    std::string text;
    constexpr int kLoopback = 1;  // the kernel's number for the loopback device of every namespace
    s.shm_shard = open_shm_shard(kLoopback, options(), &s.shm_ring, &why, &text);
    *ring = s.shm_ring;
    if (s.shm_shard == nullptr) {
        s.shm_failed = true;
        vma_log(warning, "engine", "no shared memory with other processes: {}", text);
        return nullptr;
    }
    s.shm_shard->tcp().set_text_lane(s.shm_ring);
    s.shards[shards] = s.shm_shard;
    s.shard_count.store(shards + 1, std::memory_order_release);
    InternalThread::poke();
    return s.shm_shard;
}

void Runtime::poke() { InternalThread::poke(); }
void Runtime::set_tick(void (*fn)()) { state().tick.store(fn, std::memory_order_release); }

void Runtime::tick() {
    if (auto* fn = state().tick.load(std::memory_order_acquire)) fn();
}

void Runtime::follow_network() {
    for_each_space([](NetSpace& space) {
        const uint64_t neighbors = space.monitor().neighbor_generation();
        const uint64_t links = space.monitor().link_news();
        space.monitor().process();
        // An interface that is new may carry frames of our connections as soon as it is up, which the kernel would answer.
        if (links != space.monitor().link_news() && !shards().empty()) sweep_packet_rings();
        if (space.policy()) space.policy()->process();
        if (neighbors == space.monitor().neighbor_generation()) return;
        for (Shard* shard : shards()) shard->neighbors_changed();
    });
}

void Runtime::housekeeping() {
    Bereaved& bereaved = state().bereaved;
    if (!shards().empty()) {
        std::vector<FlowKey> connections;
        sweep_packet_rings(&connections);
        bereaved.add(connections, monotonic_now());
    }
    if (!bereaved.empty()) bereaved.turn(monotonic_now());
    for (Shard* shard : shards()) {
        shard->age_fragments();
        shard->tend();
    }
}

unsigned Runtime::space_count() { return state().space_count.load(std::memory_order_acquire); }
NetSpace* Runtime::space(unsigned i) { return state().spaces[i]; }

void Runtime::forget_in_child() {
    State& s = state();
    new (&s.control) std::mutex;
    s.space_count = 0;
    s.shard_count = 0;
    new (&s.lanes) Lanes;
    new (&s.bereaved) Bereaved;  // its descriptor is closed already
    lanes_forget_in_child();
    s.shm_shard = nullptr;
    s.shm_ring = nullptr;
    s.heavy = false;
    ShmPeers::forget_in_child();
    InternalThread::forget_in_child();
    NetworkMonitor::forget_in_child();
}

void Runtime::stop() {
    State& s = state();
    if (s.stopped.exchange(true)) return;
    InternalThread::stop();
    for (Shard* shard : shards()) shard->close_ring();
}

}  // namespace vma
