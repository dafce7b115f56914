#include "sock/send_template.h"

#include <errno.h>

namespace vma::sock {

SendTemplates::~SendTemplates() {
    for (Place& p : places_) release(p.is);
}

uint64_t SendTemplates::add(SendTemplate* t) {
    for (unsigned i = 0; i < kMost; i++) {
        Place& p = places_[i];
        if (p.busy.exchange(true, std::memory_order_acquire)) continue;
        const bool free = p.number == 0;
        if (free) {
            p.number = rounds_.fetch_add(1, std::memory_order_relaxed) * kMost + i;
            p.is = t;
        }
        const uint64_t number = p.number;
        p.busy.store(false, std::memory_order_release);
        if (free) return number;
    }
    return 0;
}

int SendTemplates::enter(uint64_t number, SendTemplate** out) {
    Place& p = place(number);
    if (p.busy.exchange(true, std::memory_order_acquire)) return EBUSY;
    if (p.number == number && number != 0) {
        *out = p.is;
        return 0;
    }
    p.busy.store(false, std::memory_order_release);
    return ENOENT;
}

void SendTemplates::drop(uint64_t number) {
    Place& p = place(number);
    release(p.is);
    p.is = nullptr;
    p.number = 0;
    leave(number);
}

void SendTemplates::forget_in_child() {
    for (Place& p : places_) p.busy.store(false, std::memory_order_relaxed);
}

}  // namespace vma::sock
