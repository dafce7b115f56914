// What both directions do to a socket in repair mode. Private to this layer. Results are the kernel's: 0 or -errno.
#pragma once

#include "base/bytes.h"
#include "repair/repair.h"

namespace vma::repair {

enum Queue : int { kNoQueue = 0, kReceiveQueue = 1, kSendQueue = 2 };

// TCP_REPAIR_OPT's and TCP_REPAIR_WINDOW's records (linux/tcp.h).
struct Option {
    uint32_t code, value;
};
struct Window {
    uint32_t snd_wl1, snd_wnd, max_window, rcv_wnd, rcv_wup;
    bool operator==(const Window&) const = default;
};

int set(int fd, int level, int name, int value);
// -errno, or the value in *value.
int get(int fd, int level, int name, int* value);
int enter(int fd);
// `probe`: the kernel asks the peer for its window.
void leave(int fd, bool probe);
int select_queue(int fd, Queue queue);
// connect() to nothing: an unconnected socket, in repair mode without a segment.
int disconnect(int fd);

void save_options(int fd, RepairOptions& out);
// Puts back what differs. `buffers`: their sizes and locks, too.
void put_options(int fd, const RepairOptions& saved, bool buffers);

}  // namespace vma::repair
