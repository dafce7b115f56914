// vmad: does for programs what needs capabilities that they do not have (docs: ARCHITECTURE.md, "The broker"). With --broker
// for one program and its children: started by libvma.so, its end of the door is descriptor 3, standard streams are /dev/null.
// With --listen for every process that may connect, and with --namespace, which the former starts, for those of another network
// namespace, whose doors come by descriptor 3. What it has to say goes to syslog.
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/sys.h"
#include "broker/spawn.h"
#include "vmad/listener.h"
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

constexpr char kHelp[] =
    "Usage: vmad --listen [PATH] [--group NAME] [--policy FILE]\n"
    "       vmad --broker for PID PROGRAM\n"
    "\n"
    "Does for programs that run with libvma.so what they have no capability for: opens and steers "
    "rings\n"
    "for their own sockets, moves their connections into the kernel and out of it.\n"
    "\n"
    "  --listen [PATH]   serve every process that may write to the socket PATH, by default\n"
    "                    %s; under systemd the socket that it passes\n"
    "  --group NAME      members of the group may, too; otherwise root alone\n"
    "  --policy FILE     who may have which interfaces, ports and rates (vmad.conf(5)), by "
    "default\n"
    "                    %s if it is there; SIGHUP reads it again\n"
    "  --namespace FILE  serve another network namespace: vmad --listen starts it so\n"
    "  --broker          serve one program and its children: libvma.so starts it so\n"
    "  --help            this\n";

// Of the broker of the host. Under systemd both ways lead to the journal, which would have every line twice.
void open_log() {
    openlog("vmad", LOG_PID | (getenv("JOURNAL_STREAM") ? 0 : LOG_PERROR), LOG_DAEMON);
}

bool has_socket() {
    int type = 0;
    socklen_t len = sizeof type;
    if (getsockopt(vma::broker::kBrokerSocket, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
        type == SOCK_SEQPACKET)
        return true;
    fprintf(stderr, "vmad: descriptor %d is not the socket of who starts it so\n",
            vma::broker::kBrokerSocket);
    return false;
}

int broker() {
    if (!has_socket()) return 2;
    start_clean();
    openlog("vmad", LOG_PID, LOG_DAEMON);
    keep_only_what_is_needed();
    return vmad::serve_program(vma::broker::kBrokerSocket);
}

int worker(const char* policy) {
    if (!has_socket()) return 2;
    start_clean();
    open_log();
    keep_only_what_is_needed();
    return vmad::serve_namespace(vma::broker::kBrokerSocket, policy);
}

constexpr char kPolicy[] = "/etc/vmad.conf";

int daemon_of(const char* path, const char* group, const char* policy) {
    std::string why;
    int listener = vmad::passed_listener();
    if (listener < 0) listener = vmad::listen_at(path, group, &why);
    if (listener < 0) {
        fprintf(stderr, "vmad: %s\n", why.c_str());
        return 1;
    }
    start_clean();
    signal(SIGINT, SIG_DFL);
    open_log();
    keep_only_what_is_needed();
    if (*policy == 0 && access(kPolicy, F_OK) == 0) policy = kPolicy;
    return vmad::serve_host(listener, policy);
}

int misused() {
    fprintf(stderr, "vmad: see vmad --help\n");
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view what = argc > 1 ? argv[1] : "";
    if (what == "--help") {
        printf(kHelp, vma::broker::kHostSocket, kPolicy);
        return 0;
    }
    if (what == "--broker") return broker();
    if (what == "--namespace" && argc == 3) return worker(argv[2]);
    if (what != "--listen") return misused();
    const char *path = vma::broker::kHostSocket, *group = "", *policy = "";
    int at = 2;
    if (at < argc && argv[at][0] != '-') path = argv[at++];
    for (; at + 1 < argc; at += 2) {
        const std::string_view option = argv[at];
        if (option != "--group" && option != "--policy") break;
        (option == "--group" ? group : policy) = argv[at + 1];
    }
    return at == argc ? daemon_of(path, group, policy) : misused();
}
