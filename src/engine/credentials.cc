#include "engine/credentials.h"

#include <linux/capability.h>
#include <sys/prctl.h>

#include <fcntl.h>
#include <linux/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/internal_thread.h"

namespace vma {
namespace {

// More groups than that (the kernel allows 65536) are cut off: the internal thread opens no files that they could matter for.
constexpr long kMostGroups = 1024;
constexpr Duration kEndsWithin = Duration::millis(200);

struct Capabilities {
    __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    bool get(int tid) {
        head.pid = tid;
        return sys::raw(SYS_capget, sys::ptr(&head), sys::ptr(data)) == 0;
    }
    bool may_more_than(const Capabilities& other) const {
        return (data[0].permitted & ~other.data[0].permitted) != 0 ||
               (data[1].permitted & ~other.data[1].permitted) != 0;
    }
};

struct Credentials {
    uint32_t groups[kMostGroups];
    long group_count;
    uint32_t user[3], group[3];
    bool keep_capabilities;
    Capabilities capabilities;
    bool done = false;

    bool read() {
        group_count = sys::raw(SYS_getgroups, kMostGroups, sys::ptr(groups));
        if (group_count < 0) group_count = 0;
        keep_capabilities = sys::raw(SYS_prctl, PR_GET_KEEPCAPS) > 0;
        return sys::raw(SYS_getresuid, sys::ptr(&user[0]), sys::ptr(&user[1]),
                        sys::ptr(&user[2])) == 0 &&
               sys::raw(SYS_getresgid, sys::ptr(&group[0]), sys::ptr(&group[1]),
                        sys::ptr(&group[2])) == 0 &&
               capabilities.get(0);
    }
};

// On the internal thread. As far as it may: what counts is that the capabilities are gone at the end.
void become(void* context) {
    Credentials& c = *static_cast<Credentials*>(context);
    sys::raw(SYS_setgroups, c.group_count, sys::ptr(c.groups));
    sys::raw(SYS_setresgid, c.group[0], c.group[1], c.group[2]);
    sys::raw(SYS_prctl, PR_SET_KEEPCAPS, c.keep_capabilities);
    sys::raw(SYS_setresuid, c.user[0], c.user[1], c.user[2]);
    c.capabilities.head.pid = 0;
    const long set =
        sys::raw(SYS_capset, sys::ptr(&c.capabilities.head), sys::ptr(c.capabilities.data));
    c.done = set == 0;
}

// Threads of this process, the internal one among them. Without /proc nobody knows: 0.
unsigned threads() {
    struct statx task {};
    // The links of this directory are two and the threads.
    if (sys::raw(SYS_statx, AT_FDCWD, sys::ptr("/proc/self/task"), 0, STATX_NLINK,
                 sys::ptr(&task)) != 0)
        return 0;
    return task.stx_nlink - 2;
}
bool program_has_one_thread() { return threads() == 2; }

}  // namespace

void follow_credentials() {
    const int tid = InternalThread::tid();
    if (tid == 0 || InternalThread::is_current()) return;
    Capabilities own, others;
    if (!own.get(0) || !others.get(tid) || !others.may_more_than(own) || !program_has_one_thread())
        return;
    Credentials c;
    if (!c.read() || !InternalThread::perform(become, &c) || !c.done)
        vma_log(warning, "engine",
                "the program has given up privileges by a system call of its own, and the internal "
                "thread could not do the same: it still has them");
}

bool suspend_internal_thread() {
    if (InternalThread::tid() == 0 || InternalThread::is_current() || !program_has_one_thread())
        return false;
    InternalThread::stop();
    // It has said its last word; the kernel still counts it for a moment.
    const Instant deadline = monotonic_now() + kEndsWithin;
    while (threads() == 2 && monotonic_now() < deadline) sys::raw(SYS_sched_yield);
    return true;
}

void follow_keep_capabilities(bool keep) {
    if (InternalThread::tid() == 0 || InternalThread::is_current() || !program_has_one_thread())
        return;
    const auto set = [](void* value) {
        sys::raw(SYS_prctl, PR_SET_KEEPCAPS, *static_cast<bool*>(value));
    };
    (void)InternalThread::perform(set, &keep);
}

}  // namespace vma
