// Closing a descriptor that somebody else made and that may be any file: close(2) can wait for whoever is behind it (the flush
// of a FUSE file, a socket with SO_LINGER), as long as he likes. A thread of its own does it.
#pragma once

namespace vma {

// Returns at once. If no thread can be started the descriptor stays open until exec (it has CLOEXEC). Any thread.
void close_aside(int fd);
// The same, but waits until it is closed, `ms` at most; at once for what never waits. False: it is not closed yet.
bool close_within(int fd, unsigned ms);
// No thread of these is left, however long they take: the library is about to be unmapped.
void close_aside_end();

}  // namespace vma
