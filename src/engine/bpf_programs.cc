#include "engine/bpf_programs.h"

#include <fcntl.h>
#include <linux/bpf.h>
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/sys.h"

namespace vma {

namespace {

// Attach types younger than the headers of Debian 12.
constexpr uint32_t kTcxIngress = 46, kTcxEgress = 47;

int open_path(const char* path, int flags) {
    return int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr(path), flags | O_CLOEXEC));
}

int bpf(int command, bpf_attr& attr) {
    return int(sys::raw(SYS_bpf, command, sys::ptr(&attr), sizeof(attr)));
}

// "4:... / /sys/fs/cgroup rw - cgroup2 ...": root and mount point are the fourth and fifth field.
bool find_cgroup_mount(const std::string& mountinfo, std::string& root, std::string& point) {
    for (size_t at = 0; at < mountinfo.size();) {
        const size_t end = std::min(mountinfo.find('\n', at), mountinfo.size());
        const std::string_view line(mountinfo.data() + at, end - at);
        at = end + 1;
        if (line.find(" - cgroup2 ") == std::string_view::npos) continue;
        std::vector<std::string_view> fields;
        for (size_t i = 0; i < line.size() && fields.size() < 5;) {
            const size_t space = std::min(line.find(' ', i), line.size());
            fields.push_back(line.substr(i, space - i));
            i = space + 1;
        }
        if (fields.size() < 5) continue;
        root = fields[3];
        point = fields[4];
        return true;
    }
    return false;
}

// Directory of this process in the cgroup2 hierarchy, or empty.
std::string own_cgroup() {
    std::string root, point;
    if (!find_cgroup_mount(read_proc_file("/proc/self/mountinfo"), root, point)) return {};
    const std::string groups = read_proc_file("/proc/self/cgroup");
    const size_t at = groups.starts_with("0::") ? 0 : groups.find("\n0::");
    if (at == std::string::npos) return {};
    const size_t begin = groups.find("::", at) + 2;
    std::string path = groups.substr(begin, groups.find('\n', begin) - begin);
    if (root != "/" && path.starts_with(root)) path.erase(0, root.size());
    return point + path;
}

bool program_is_ours(uint32_t id, std::string& name) {
    bpf_attr attr{};
    attr.prog_id = id;
    const int fd = bpf(BPF_PROG_GET_FD_BY_ID, attr);
    if (fd < 0) return fd == -ENOENT;  // gone in between
    bpf_prog_info info{};
    std::memset(&attr, 0, sizeof(attr));
    attr.info.bpf_fd = uint32_t(fd);
    attr.info.info_len = sizeof(info);
    attr.info.info = uint64_t(sys::ptr(&info));
    const int err = bpf(BPF_OBJ_GET_INFO_BY_FD, attr);
    sys::close(fd);
    if (err != 0) return false;
    name.assign(info.name, strnlen(info.name, sizeof(info.name)));
    return name.starts_with("vma_");
}

}  // namespace

std::string read_proc_file(const char* path) {
    const int fd = open_path(path, O_RDONLY);
    if (fd < 0) return {};
    std::string all;
    std::array<char, 4096> part;
    ssize_t n;
    while ((n = sys::read(fd, part.data(), part.size())) > 0 && all.size() < (1u << 20))
        all.append(part.data(), size_t(n));
    sys::close(fd);
    return all;
}

Result<std::string> cgroup_program(uint8_t protocol) {
    struct Hook {
        uint32_t type;
        const char* name;
        uint8_t protocol;  // 0: both
    };
    static constexpr Hook hooks[] = {{BPF_CGROUP_INET_INGRESS, "ingress", 0},
                                     {BPF_CGROUP_INET_EGRESS, "egress", 0},
                                     {BPF_CGROUP_INET4_CONNECT, "connect4", 0},
                                     {BPF_CGROUP_SOCK_OPS, "sock_ops", IPPROTO_TCP},
                                     {BPF_CGROUP_UDP4_SENDMSG, "sendmsg4", IPPROTO_UDP},
                                     {BPF_CGROUP_UDP4_RECVMSG, "recvmsg4", IPPROTO_UDP}};
    const std::string directory = own_cgroup();
    if (directory.empty()) return Errno{ENOENT};
    const int fd = open_path(directory.c_str(), O_RDONLY | O_DIRECTORY);
    if (fd < 0) return Errno{-fd};
    std::string found;
    int err = 0;
    for (const Hook& h : hooks) {
        if (h.protocol != 0 && h.protocol != protocol) continue;
        bpf_attr attr{};
        attr.query.target_fd = uint32_t(fd);
        attr.query.attach_type = h.type;
        attr.query.query_flags = BPF_F_QUERY_EFFECTIVE;
        const int e = bpf(BPF_PROG_QUERY, attr);
        if (e == -EPERM) err = EPERM;
        if (e == 0 && attr.query.prog_cnt != 0) {
            found = h.name;
            break;
        }
    }
    sys::close(fd);
    if (found.empty() && err != 0) return Errno{err};
    return found;
}

Result<std::string> foreign_tcx_program(int ifindex) {
    for (const uint32_t type : {kTcxIngress, kTcxEgress}) {
        std::array<uint32_t, 64> ids{};  // the kernel allows 64 programs per hook
        bpf_attr attr{};
        attr.query.target_fd = uint32_t(ifindex);
        attr.query.attach_type = type;
        attr.query.prog_ids = uint64_t(sys::ptr(ids.data()));
        attr.query.prog_cnt = uint32_t(ids.size());
        const int err = bpf(BPF_PROG_QUERY, attr);
        if (err == -ENOENT) continue;  // nothing attached
        if (err != 0) return Errno{-err};
        for (size_t i = 0; i < attr.query.prog_cnt && i < ids.size(); i++) {
            std::string name;
            if (!program_is_ours(ids[i], name)) return name.empty() ? std::string("unnamed") : name;
        }
    }
    return std::string{};
}

}  // namespace vma
