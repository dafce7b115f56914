// vmad --broker: keeps the capabilities that a program had when it started, and does for it and its children what needs them
// (docs: ARCHITECTURE.md, "The broker"). Started by libvma.so; its end of the door is descriptor 3. Standard streams are
// /dev/null, so what it has to say goes to syslog.
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/sys.h"
#include "broker/spawn.h"
#include "vmad/server.h"

namespace {

// NET_ADMIN: repair mode, TCX. NET_RAW: a peer's FIN is delivered through a raw socket. BPF, PERFMON, SYS_ADMIN: to find the
// maps that processes share. NET_BIND_SERVICE: connections of port 80.
constexpr int kKept[] = {CAP_NET_ADMIN, CAP_NET_RAW,   CAP_BPF,
                         CAP_PERFMON,   CAP_SYS_ADMIN, CAP_NET_BIND_SERVICE};

void keep_only_what_is_needed() {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    if (vma::sys::raw(SYS_capget, vma::sys::ptr(&head), vma::sys::ptr(data)) != 0) return;
    uint32_t kept[2] = {};
    for (const int cap : kKept) kept[cap / 32] |= 1u << (cap % 32);
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (!(kept[cap / 32] & (1u << (cap % 32)))) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    for (int word = 0; word < 2; word++) {
        data[word].permitted &= kept[word];
        data[word].effective = data[word].permitted;
        data[word].inheritable = 0;
    }
    vma::sys::raw(SYS_capset, vma::sys::ptr(&head), vma::sys::ptr(data));
}

void start_clean() {
    // Dispositions and mask are the program's.
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
    for (const int number : {SIGPIPE, SIGHUP, SIGINT, SIGQUIT, SIGTSTP}) signal(number, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    umask(077);
    if (chdir("/") != 0) return;
    // What the program allows itself is no limit for us: of address space (a rescue maps a whole arena), of processor time, of
    // bytes in a file (queues).
    for (const auto kind : {RLIMIT_AS, RLIMIT_DATA, RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_NPROC}) {
        rlimit all{RLIM_INFINITY, RLIM_INFINITY};
        if (setrlimit(kind, &all) == 0 || getrlimit(kind, &all) != 0) continue;
        all.rlim_cur = all.rlim_max;
        setrlimit(kind, &all);
    }
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        // A rescue has a descriptor for every connection.
        rlimit more{files.rlim_max < (1u << 20) ? (1u << 20) : files.rlim_max,
                    files.rlim_max < (1u << 20) ? (1u << 20) : files.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &more) != 0) {
            files.rlim_cur = files.rlim_max;
            setrlimit(RLIMIT_NOFILE, &files);
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || std::strcmp(argv[1], "--broker") != 0) {
        fprintf(stderr,
                "vmad is started by libvma.so, as: vmad --broker for PID NAME\n"
                "It keeps a program's capabilities for the library; descriptor %d is its socket.\n",
                vma::broker::kBrokerSocket);
        return 2;
    }
    int type = 0;
    socklen_t len = sizeof type;
    if (getsockopt(vma::broker::kBrokerSocket, SOL_SOCKET, SO_TYPE, &type, &len) != 0 ||
        type != SOCK_SEQPACKET) {
        fprintf(stderr, "vmad: descriptor %d is not the socket of a libvma.so\n",
                vma::broker::kBrokerSocket);
        return 2;
    }
    start_clean();
    openlog("vmad", LOG_PID, LOG_DAEMON);
    keep_only_what_is_needed();
    return vmad::serve(vma::broker::kBrokerSocket);
}
