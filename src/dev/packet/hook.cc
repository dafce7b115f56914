#include "dev/packet/hook.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/signals_blocked.h"
#include "base/spin_lock.h"
#include "base/sys.h"
#include "dev/packet/bpf_calls.h"
#include "dev/packet/interfaces.h"
#include "dev/packet/programs.h"

namespace vma {
namespace {

constexpr unsigned kMostHooks = 16;  // namespaces of one process
constexpr char kRxName[] = "vma_rx";
constexpr unsigned kLinkTries = 500;  // a millisecond each

// Hooks of this process. A forked child starts empty: what the parent had is not in it.
struct Registry {
    std::atomic<Hook*> hooks[kMostHooks] = {};
    std::atomic<int> pid{0};
    SpinLock lock;  // use counts: a hook is not deleted under who looks at it
};
Registry g_registry;

void forget_after_fork() {
    const int pid = sys::getpid();
    if (g_registry.pid.exchange(pid) == pid) return;
    for (auto& h : g_registry.hooks) h.store(nullptr);
    new (&g_registry.lock) SpinLock;
}

// Runs Hook::Meanwhile beside the caller, or at join() when no thread is to be had. Signals are the program's threads' business.
class Companion {
  public:
    Companion(Hook& hook, Hook::Meanwhile work) : hook_(hook), work_(work) {}
    void start() {
        if (!work_.run) return;
        SignalsBlocked blocked(SignalsBlocked::Libc::left);
        running_ = pthread_create(&thread_, nullptr, run, this) == 0;
    }
    uint32_t join() {
        if (running_)
            pthread_join(thread_, nullptr);
        else if (work_.run)
            slot_ = work_.run(hook_, work_.context);
        return slot_;
    }

  private:
    static void* run(void* self) {
        auto& me = *static_cast<Companion*>(self);
        me.slot_ = me.work_.run(me.hook_, me.work_.context);
        return nullptr;
    }
    Hook& hook_;
    Hook::Meanwhile work_;
    pthread_t thread_{};
    bool running_ = false;
    uint32_t slot_ = 0;
};

// The link that has the program on the interface, another process's or a new one. -errno.
int share_link(int ifindex, uint32_t type, int program, uint32_t program_id) {
    bpf::Attached found[64];
    const int n = bpf::attached(ifindex, type, found, 64);
    if (n < 0) return n;
    int fd = -1;
    for (int i = 0; i < n && i < 64 && fd < 0; ++i)
        if (found[i].program == program_id) fd = bpf::link_by_id(found[i].link);
    return fd >= 0 ? fd : bpf::attach_tcx(program, ifindex, type);
}

Status fail(std::string* why, int error, std::string text) {
    if (why) *why = std::move(text);
    return Errno{error};
}

// The tables of a program, into the places that are still empty.
void find_maps(const bpf::ProgramInfo& program, vma_programs& found) {
    for (uint32_t i = 0; i < program.map_count; ++i) {
        const int fd = bpf::map_by_id(program.maps[i]);
        bpf::MapInfo m;
        if (fd < 0) continue;
        int* to = nullptr;
        const auto is = [&](const char* name, bool shape) {
            return shape && !std::strcmp(m.name, name);
        };
        if (bpf::map_info(fd, m) == 0) {
            if (is("vma_slots", m.value_size == sizeof(vma_slot) && m.entries == VMA_SLOTS))
                to = &found.slots;
            if (is("vma_ports", m.value_size == sizeof(vma_ports))) to = &found.ports;
            if (is("vma_flows", m.key_size == sizeof(vma_flow_key))) to = &found.flows;
            if (is("vma_rings", m.entries == VMA_RING_TABLE)) to = &found.rings;
            if (is("vma_owners", m.entries == VMA_SLOTS)) to = &found.owners;
            if (is("vma_groups", m.value_size == sizeof(vma_group))) to = &found.groups;
            if (is("vma_twins", m.key_size == sizeof(vma_twin_key))) to = &found.twins;
        }
        if (to && *to < 0)
            *to = fd;
        else
            sys::close(fd);
    }
}

// -errno. A signal that arrives during the verification ends it with EAGAIN, and programs have interval timers.
int load_programs(vma_programs& fds) {
    SignalsBlocked blocked;
    return vma_programs_load(&fds);
}

// Nothing but descriptors keeps the filter of twins: when the last process that had it has ended and processes without privileges
// go on with their rings, it is gone, together with every twin that had it. The next gets one and its table anew.
void replace_twin_filter(vma_programs& found) {
    vma_programs fresh;
    if (load_programs(fresh) < 0) return;
    std::swap(found.twin, fresh.twin);
    std::swap(found.twins, fresh.twins);
    for (const int fd : {fresh.rx, fresh.tx, fresh.twin, fresh.flows, fresh.slots, fresh.ports,
                         fresh.rings, fresh.owners, fresh.groups, fresh.twins})
        if (fd >= 0) sys::close(fd);
}

bool all_there(const vma_programs& p) {
    for (int fd :
         {p.rx, p.tx, p.twin, p.flows, p.slots, p.ports, p.rings, p.owners, p.groups, p.twins})
        if (fd < 0) return false;
    return true;
}

}  // namespace

Status PrivateMapping::map(int fd, size_t bytes, int protection, uint64_t offset, bool populate) {
    reset();
    void* p = sys::mmap(nullptr, bytes, protection, MAP_SHARED | (populate ? MAP_POPULATE : 0), fd,
                        off_t(offset));
    if (sys::failed(p)) return Errno{int(-reinterpret_cast<intptr_t>(p))};
    sys::raw(SYS_madvise, sys::ptr(p), long(bytes), MADV_DONTFORK);
    at_ = static_cast<uint8_t*>(p);
    bytes_ = bytes;
    return {};
}

void PrivateMapping::become_zeros() {
    if (at_ == nullptr) return;
    sys::mmap(at_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    sys::raw(SYS_madvise, sys::ptr(at_), long(bytes_), MADV_DONTFORK);
}

void PrivateMapping::reset() {
    if (at_) sys::munmap(at_, bytes_);
    at_ = nullptr;
}

Result<Hook*> Hook::open(int ifindex, std::string* why, Meanwhile meanwhile) {
    forget_after_fork();
    const auto cookie = namespace_cookie();
    if (!cookie) {
        Status s =
            fail(why, cookie.error(), "SO_NETNS_COOKIE failed (Linux 5.14 or later is needed)");
        return Errno{s.error()};
    }
    std::atomic<Hook*>* place = nullptr;
    for (auto& h : g_registry.hooks) {
        Hook* hook;
        bool same = false;
        {
            SpinGuard guard(g_registry.lock);
            hook = h.load();
            same = hook != nullptr && hook->cookie_ == *cookie;
            if (same) ++hook->users_;
        }
        if (hook == nullptr) {
            if (!place) place = &h;
        } else if (same) {
            const Status s = hook->start(ifindex, why, meanwhile);
            if (s) return hook;
            hook->close();
            return Errno{s.error()};
        }
    }
    if (!place) {
        (void)fail(why, ENFILE,
                   fmt::format("more than {} network namespaces in one process", kMostHooks));
        return Errno{ENFILE};
    }
    Hook* hook = new (std::nothrow) Hook;
    if (!hook) return Errno{ENOMEM};
    hook->cookie_ = *cookie;
    const int ns = open_namespace();
    Status s = ns < 0 ? Status(Errno{-ns}) : hook->namespace_.adopt(ns);
    if (s)
        s = hook->start(ifindex, why, meanwhile);
    else
        (void)fail(why, s.error(),
                   "the network namespace cannot be held (CAP_NET_ADMIN is needed)");
    if (!s) {
        delete hook;
        return Errno{s.error()};
    }
    hook->users_ = 1;
    place->store(hook);
    return hook;
}

void Hook::close() {
    {
        SpinGuard guard(g_registry.lock);
        if (--users_ != 0) return;
        for (auto& h : g_registry.hooks)
            if (h.load() == this) h.store(nullptr);
    }
    delete this;
}

template <class Fn>
void Hook::for_each(Fn&& fn) {
    forget_after_fork();
    for (auto& h : g_registry.hooks) {
        Hook* hook;
        {
            SpinGuard guard(g_registry.lock);
            hook = h.load();
            if (hook == nullptr) continue;
            ++hook->users_;
        }
        fn(*hook);
        hook->close();
    }
}

unsigned Hook::sweep_all(std::vector<FlowKey>* bereaved) {
    unsigned count = 0;
    const auto here = bereaved ? namespace_cookie() : Result<uint64_t>(Errno{ENOENT});
    for_each([&](Hook& hook) {
        count += hook.sweep();
        if (here && hook.cookie_ == *here) hook.take_bereaved(*bereaved);
    });
    return count;
}

void Hook::guard_all() {
    for_each([](Hook& hook) { (void)hook.guard(); });
}

// Joins or creates the hook if this process has none yet, and puts the receive program onto the interface.
Status Hook::start(int ifindex, std::string* why, Meanwhile meanwhile) {
    // A second life token would be the end of the rings that have the first.
    if (left()) return fail(why, EPERM, "the process has given up its privileges");
    // Asked first: such a kernel refuses the programs, too, for reasons that would tell nobody anything.
    if (bpf::attached(ifindex, bpf::kTcxIngress, nullptr, 0) == -EINVAL)
        return fail(why, EOPNOTSUPP, "the kernel has no TCX hooks (Linux 6.6 or later is needed)");
    Companion companion(*this, meanwhile);
    Status s;
    {
        NamespaceLock lock;
        const bool locked =
            lock.take().ok();  // without it: an own hook, which works beside any other
        if (slots_ == nullptr && !(locked && join(ifindex))) {
            if (s = load(why); !s) return s;
        }
        sweep();
        companion.start();
        s = ensure_link(ifindex, bpf::kTcxIngress, rx_program_.fd(), head().rx_program);
    }
    // Others may come in meanwhile: they need the program in place, not our slot.
    const uint32_t claimed = companion.join();
    if (!s && claimed) {
        bool which[VMA_SLOTS] = {};
        which[claimed] = true;
        drop_flows(which);
    }
    if (!s)
        return fail(why, s.error(),
                    fmt::format("attaching to interface {} failed: errno {}", ifindex, s.error()));
    return {};
}

Status Hook::load(std::string* why) {
    vma_programs fds;
    const int r = load_programs(fds);
    if (r == -EPERM || r == -EACCES)
        return fail(why, EPERM,
                    "loading the BPF programs is not permitted: CAP_BPF, CAP_NET_ADMIN and "
                    "CAP_PERFMON (or CAP_SYS_ADMIN) are "
                    "needed");
    if (r < 0) return fail(why, -r, fmt::format("loading the BPF programs failed: errno {}", -r));
    bpf::ProgramInfo rx, tx, twin;
    bpf::program_info(fds.rx, rx);
    bpf::program_info(fds.tx, tx);
    bpf::program_info(fds.twin, twin);
    if (Status s = adopt_tables(fds); !s)
        return fail(why, s.error(), "mapping the BPF tables failed, or no descriptor is left");
    if (Status s = make_token(); !s) return fail(why, s.error(), "making the life token failed");
    head().version = VMA_HOOK_VERSION;
    head().rx_program = rx.id;
    head().tx_program = tx.id;
    head().twin_program = twin.id;
    std::atomic_ref(head().magic).store(VMA_HOOK_MAGIC, std::memory_order_release);
    shared_ = bpf::map_exists(token_) == 1;
    return {};
}

Status Hook::map_tables(int slots, int ports) {
    const int rw = PROT_READ | PROT_WRITE;
    if (Status s = slots_map_.map(slots, sizeof(vma_slot) * VMA_SLOTS, rw, 0); !s) return s;
    if (Status s = ports_map_.map(ports, sizeof(vma_ports), rw, 0); !s) return s;
    slots_ = reinterpret_cast<vma_slot*>(slots_map_.at());
    ports_ = reinterpret_cast<vma_ports*>(ports_map_.at());
    return {};
}

// Takes the descriptors over, whatever the outcome.
Status Hook::adopt_tables(const vma_programs& found) {
    Status s = map_tables(found.slots, found.ports);
    sys::close(found.slots);
    sys::close(found.ports);
    const Status moved[] = {flows_.adopt(found.flows),   rings_.adopt(found.rings),
                            owners_.adopt(found.owners), groups_.adopt(found.groups),
                            twins_.adopt(found.twins),   rx_program_.adopt(found.rx),
                            tx_program_.adopt(found.tx), twin_program_.adopt(found.twin)};
    for (const Status& m : moved)
        if (s) s = m;
    return s;
}

void Hook::drop_tables() {
    for (OwnFd* fd : {&flows_, &rings_, &owners_, &groups_, &twins_, &rx_program_, &tx_program_,
                      &twin_program_})
        fd->reset();
}

Status Hook::make_token() {
    const int fd = bpf::create_map(BPF_MAP_TYPE_ARRAY, "vma_token", 4, 8, 1, BPF_F_MMAPABLE);
    if (fd < 0) return Errno{-fd};
    bpf::MapInfo info;
    const int r = bpf::map_info(fd, info);
    Status s = r < 0 ? Status(Errno{-r}) : token_map_.map(fd, 4096, PROT_READ, 0);
    sys::close(fd);  // the mapping alone keeps it
    if (s) token_ = info.id;
    return s;
}

// Takes part in the hook that another process has in this namespace. False: there is none that we could use.
bool Hook::join(int ifindex) {
    const auto interfaces = list_interfaces();
    if (!interfaces) return false;
    auto try_interface = [&](int i) {
        bpf::Attached found[64];
        const int n = bpf::attached(i, bpf::kTcxIngress, found, 64);
        for (int k = 0; k < n && k < 64; ++k)
            if (join_program(found[k].program)) return true;
        return false;
    };
    if (try_interface(ifindex)) return true;
    for (const InterfaceBrief& i : *interfaces)
        if (i.ifindex != ifindex && i.has_ethernet_header() && try_interface(i.ifindex))
            return true;
    return false;
}

bool Hook::join_program(uint32_t program_id) {
    vma_programs found;
    std::memset(&found, -1, sizeof found);  // no descriptors
    found.rx = bpf::program_by_id(program_id);
    if (found.rx < 0) return false;
    bpf::ProgramInfo info;
    if (bpf::program_info(found.rx, info) < 0 || std::strcmp(info.name, kRxName) != 0) {
        sys::close(found.rx);
        return false;
    }
    find_maps(info, found);
    bool ok = found.slots >= 0 && found.ports >= 0 && map_tables(found.slots, found.ports).ok();
    ok = ok && std::atomic_ref(head().magic).load(std::memory_order_acquire) == VMA_HOOK_MAGIC &&
         head().version == VMA_HOOK_VERSION && head().rx_program == program_id;
    if (ok) {
        found.tx = bpf::program_by_id(head().tx_program);
        found.twin = bpf::program_by_id(head().twin_program);
        if (found.twin == -ENOENT) replace_twin_filter(found);
        if (bpf::program_info(found.twin, info) == 0) {
            head().twin_program = info.id;
            find_maps(info, found);
        }
    }
    ok = ok && all_there(found) && make_token().ok();
    ok = adopt_tables(found).ok() && ok;
    if (!ok) {
        drop_tables();
        slots_map_.reset(), ports_map_.reset(), token_map_.reset();
        slots_ = nullptr;
        ports_ = nullptr;
        return false;
    }
    shared_ = true;
    return true;
}

// The program on that interface, by a link of our own or one of another process that we hold too.
Status Hook::ensure_link(int ifindex, uint32_t type, int program, uint32_t program_id) {
    Link* place = nullptr;
    for (Link& l : links_) {
        if (!l.fd.valid()) {
            if (!place) place = &l;
        } else if (l.ifindex == ifindex && l.type == type) {
            return {};
        }
    }
    if (!place) return Errno{ENFILE};
    int fd = share_link(ifindex, type, program, program_id);
    // A link whose last holder has just gone cannot be had any more, and is still in the way until the kernel has put it away.
    for (unsigned i = 0; fd == -EEXIST && i < kLinkTries; ++i) {
        const timespec pause{0, 1'000'000};
        sys::raw(SYS_nanosleep, sys::ptr(&pause), 0);
        fd = share_link(ifindex, type, program, program_id);
    }
    if (fd < 0) return Errno{-fd};
    if (Status s = place->fd.adopt(fd); !s) return s;
    place->ifindex = ifindex;
    place->type = type;
    return {};
}

int Hook::link_on(int ifindex, uint32_t type) const {
    for (const Link& l : links_)
        if (l.fd.valid() && l.ifindex == ifindex && l.type == type)
            return sys::fcntl(l.fd.fd(), F_DUPFD_CLOEXEC, 3);
    return -ENOENT;
}

void Hook::FlowTables::close_all() {
    for (int* fd : {&flows, &slots, &ports}) {
        if (*fd >= 0) sys::close(*fd);
        *fd = -1;
    }
}

Status Hook::borrow_tables(FlowTables& out) const {
    bpf::ProgramInfo info;
    if (const int r = bpf::program_info(rx_program_.fd(), info); r < 0) return Errno{-r};
    vma_programs found;
    std::memset(&found, -1, sizeof found);
    find_maps(info, found);
    for (const int fd : {found.rings, found.owners, found.groups, found.twins})
        if (fd >= 0) sys::close(fd);
    out = {found.flows, found.slots, found.ports, 0};
    bpf::MapInfo slots;
    if (out.flows >= 0 && out.ports >= 0 && bpf::map_info(out.slots, slots) == 0) {
        out.slots_id = slots.id;
        return {};
    }
    out.close_all();
    return Errno{EPERM};
}

// Called with the tables locked.
Status Hook::ensure_guard() {
    const VisitNamespace there(cookie_, namespace_.fd());
    if (!there.ok()) return Errno{ENETUNREACH};
    const auto interfaces = list_interfaces();
    if (!interfaces) return Errno{ENETUNREACH};
    for (Link& l : links_) {  // of interfaces that are gone
        if (!l.fd.valid()) continue;
        bool exists = false;
        for (const InterfaceBrief& i : *interfaces) exists = exists || i.ifindex == l.ifindex;
        if (!exists) l.fd.reset();
    }
    for (const InterfaceBrief& i : *interfaces) {
        if (!i.has_ethernet_header()) continue;  // down as well: when it comes up it is too late
        const Status s =
            ensure_link(i.ifindex, bpf::kTcxEgress, tx_program_.fd(), head().tx_program);
        if (!s && s.error() != ENODEV) return Errno{ENETUNREACH};
    }
    return {};
}

}  // namespace vma
