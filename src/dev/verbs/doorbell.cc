#include "dev/verbs/doorbell.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>

#include "base/sys.h"

namespace vma {

Status Doorbell::open(const VerbsPort& port) {
    library_ = &port.library();
    channel_ = library_->create_comp_channel(port.context());
    if (channel_ == nullptr) return Errno{errno};
    if (const Status moved = fd_.move(&channel_->fd); !moved) return moved;
    const int flags = sys::fcntl(channel_->fd, F_GETFL);
    sys::fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK);
    return {};
}

void Doorbell::close() {
    fd_.restore();
    if (channel_ != nullptr) library_->destroy_comp_channel(channel_);
    channel_ = nullptr;
}

unsigned Doorbell::take() {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    unsigned taken = 0;
    fd_.follow();
    const int before = errno;
    for (; library_->get_cq_event(channel_, &queue, &context) == 0; taken++)
        library_->ack_cq_events(queue, 1);
    errno = before;
    return taken;
}

bool can_moderate(const VerbsPort& port) { return port.attributes().cq_mod_caps.max_cq_count != 0; }

Status moderate_queue(const VerbsPort& port, ibv_cq* queue, Moderation to) {
    if (!can_moderate(port)) return Errno{EOPNOTSUPP};
    const auto& caps = port.attributes().cq_mod_caps;
    ibv_modify_cq_attr a{};
    a.attr_mask = IBV_CQ_ATTR_MODERATE;
    a.moderate.cq_count = uint16_t(std::min<uint32_t>(to.count, caps.max_cq_count));
    a.moderate.cq_period = uint16_t(std::min<uint32_t>(to.usec, caps.max_cq_period));
    const int error = ibv_modify_cq(queue, &a);
    return error != 0 ? Status(Errno{error}) : Status();
}

}  // namespace vma
