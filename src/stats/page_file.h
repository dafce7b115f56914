// Files that viewers read, in a directory that others may write to: never through a link, never over another's file.
// Raw system calls only; any thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/own_fd.h"
#include "base/sys.h"

namespace vma::stats {

// A new file with this name, mode 0600, open for reading and writing, close-on-exec; or -errno (-EEXIST: the name is taken).
int create_page_file(const char* path);
// Blocks for [offset, offset + n), so that a store into a mapping cannot meet a full disk (SIGBUS). 0 or -errno.
int reserve_blocks(int fd, uint64_t offset, uint64_t n);
// Writes `prefix` and the number of the process to `out`, which has room; the place behind it.
char* page_file_name(char* out, const char* prefix, uint32_t pid);

// What is shown in such a file stands first in memory that nobody can cut, a memfd of no length yet. 0 or -errno.
int sealed_memory(const char* name, OwnFd& out);
// Maps [offset, offset + n) shared. 0 or -errno.
int map_shared(int fd, uint64_t offset, size_t n, uint8_t** out);
// The kernel copies bytes of `fd` from `from` on to these places, and whoever sees what came to one sees what came to those
// before it. How many bytes: fewer when a place is in a mapping of a file that is too short by now (no SIGBUS).
inline size_t copy_in_order(int fd, uint64_t from, std::span<const iovec> to) {
#if defined(__x86_64__)
    // Stores of one piece may become visible in any order, but those of the next come after them.
    const long done = sys::raw(SYS_preadv, fd, sys::ptr(to.data()), long(to.size()), long(from), 0);
    return done > 0 ? size_t(done) : 0;
#else
    // A call for each: taking and giving back the reference on the memory's page is a barrier.
    size_t done = 0;
    for (const iovec& piece : to) {
        const long n = sys::raw(SYS_pread64, fd, sys::ptr(piece.iov_base), long(piece.iov_len),
                                long(from + done));
        if (n > 0) done += size_t(n);
    }
    return done;
#endif
}

}  // namespace vma::stats
