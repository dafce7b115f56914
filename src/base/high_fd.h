// Descriptor numbers away from the program's own, which takes the lowest that is free and may count on it. For descriptors
// that live for a moment; one that stays is an OwnFd.
#pragma once

namespace vma {

// A duplicate in the top quarter of the soft limit, or lower when that is full, but none of 0 to 2; close-on-exec. -errno.
int duplicate_high(int fd);
// The same file under such a number, the number given is free again. When there is none: `fd` itself.
int raised(int fd);

}  // namespace vma
