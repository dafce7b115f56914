#include "stats/page_file.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstring>

#include "base/sys.h"

namespace vma::stats {

int create_page_file(const char* path) {
    return int(sys::raw(SYS_openat, AT_FDCWD, sys::ptr(path),
                        O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
}

int reserve_blocks(int fd, uint64_t offset, uint64_t n) {
    rlimit limit{};
    if (sys::raw(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, sys::ptr(&limit)) == 0 &&
        offset + n > limit.rlim_cur)
        return -EFBIG;  // asked before: beyond it the kernel would send SIGXFSZ
    const long error = sys::raw(SYS_fallocate, fd, 0, long(offset), long(n));
    if (error != -EOPNOTSUPP) return int(error);
    static constexpr char zeros[4096] = {};
    for (uint64_t at = offset; at < offset + n; at += sizeof zeros) {
        const long written = sys::raw(SYS_pwrite64, fd, sys::ptr(zeros), sizeof zeros, long(at));
        if (written != long(sizeof zeros)) return written < 0 ? int(written) : -ENOSPC;
    }
    return 0;
}

char* page_file_name(char* out, const char* prefix, uint32_t pid) {
    const size_t n = std::strlen(prefix);
    std::memcpy(out, prefix, n);
    return fmt::format_to(out + n, "{}", pid);
}

int sealed_memory(const char* name, OwnFd& out) {
    const int fd = int(sys::raw(SYS_memfd_create, sys::ptr(name), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0) return fd;
    if (const Status kept = out.adopt(fd); !kept) return -kept.error();
    // It can be opened by way of /proc/PID/fd.
    const int error = sys::fcntl(out.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL);
    if (error) out.reset();
    return error;
}

int map_shared(int fd, uint64_t offset, size_t n, uint8_t** out) {
    void* memory = sys::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, off_t(offset));
    if (sys::failed(memory)) return int(reinterpret_cast<intptr_t>(memory));
    *out = static_cast<uint8_t*>(memory);
    return 0;
}

}  // namespace vma::stats
