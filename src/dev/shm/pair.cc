#include "dev/shm/pair.h"

#include <utility>

#include "base/sys.h"

namespace vma::shm {

void PairParts::close_all() {
    for (int* fd : {&memory, &bell, &neighbor_bell}) {
        if (*fd >= 0) sys::close(*fd);
        *fd = -1;
    }
}

Status Pair::open(PairParts parts, std::string* why) {
    std::string ignored;
    if (why == nullptr) why = &ignored;
    Status s = mapping_.map(parts.memory, parts.side, why);
    if (s) {
        s = neighbor_bell_.adopt(std::exchange(parts.neighbor_bell, -1));
        if (!s)
            *why = s.error() == EINVAL ? "the neighbour's bell is not a timer"
                                       : "no descriptor left for the neighbour's bell";
    }
    if (s) {
        s = bell_.adopt(std::exchange(parts.bell, -1));
        if (!s) *why = s.error() == EBADF ? "there is no bell" : "no descriptor left for the bell";
    }
    parts.close_all();
    if (!s) {
        mapping_.reset();
        return s;
    }
    out_.open(mapping_.outgoing(), mapping_.of_outgoing(), mapping_.ring_bytes());
    in_.open(mapping_.incoming(), mapping_.of_incoming(), mapping_.ring_bytes());
    return {};
}

}  // namespace vma::shm
