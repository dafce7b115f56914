// A memfd that holds some bytes, for another process to read.
#pragma once

#include <span>

#include "base/bytes.h"

namespace vma {

// The descriptor, close-on-exec and the caller's, or -errno: of memfd_create(2) and write(2); EFBIG beyond RLIMIT_FSIZE,
// which is asked first because the kernel would send SIGXFSZ.
int memory_file(const char* name, std::span<const ByteView> parts);

}  // namespace vma
