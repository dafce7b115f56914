#include "base/memory_file.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/high_fd.h"
#include "base/sys.h"

namespace vma {

int memory_file(const char* name, std::span<const ByteView> parts) {
    size_t bytes = 0;
    for (const ByteView part : parts) bytes += part.size();
    rlimit limit{};
    if (sys::raw(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, sys::ptr(&limit)) == 0 &&
        bytes > limit.rlim_cur)
        return -EFBIG;
    const int fd = raised(int(sys::raw(SYS_memfd_create, sys::ptr(name), MFD_CLOEXEC)));
    if (fd < 0) return fd;
    for (ByteView part : parts) {
        while (!part.empty()) {
            const ssize_t n = sys::write(fd, part.data(), part.size());
            if (n <= 0) {
                sys::close(fd);
                return n == 0 ? -EIO : int(n);
            }
            part = part.subspan(size_t(n));
        }
    }
    return fd;
}

}  // namespace vma
