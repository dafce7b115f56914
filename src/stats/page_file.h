// Files that viewers read, in a directory that others may write to: never through a link, never over another's file.
// Raw system calls only; any thread.
#pragma once

#include <cstdint>

namespace vma::stats {

// A new file with this name, mode 0600, open for reading and writing, close-on-exec; or -errno (-EEXIST: the name is taken).
int create_page_file(const char* path);
// Blocks for [offset, offset + n), so that a store into a mapping cannot meet a full disk (SIGBUS). 0 or -errno.
int reserve_blocks(int fd, uint64_t offset, uint64_t n);
// Writes `prefix` and the number of the process to `out`, which has room; the place behind it.
char* page_file_name(char* out, const char* prefix, uint32_t pid);

}  // namespace vma::stats
