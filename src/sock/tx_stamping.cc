#include "sock/tx_stamping.h"

#include <errno.h>
#include <netinet/in.h>

#include <cstring>

#include "base/ip_addr.h"
#include "base/made_once.h"
#include "base/sys.h"

namespace vma::sock {
namespace {

MadeOnce<bool> g_takes_ids;

constexpr int kProbe = 0x10;  // Linux's MSG_PROBE: with MSG_CONFIRM all of a send but the sending

bool try_stamp_id() {
    const int fd = sys::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const int count = SOF_TIMESTAMPING_OPT_ID;
    sys::setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &count, sizeof count);
    sockaddr_in to = Endpoint{IpAddr::v4(INADDR_LOOPBACK), 9}.to_sockaddr_in();
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(uint32_t))] = {};
    msghdr msg{};
    msg.msg_name = &to;
    msg.msg_namelen = sizeof to;
    msg.msg_control = control;
    msg.msg_controllen = sizeof control;
    cmsghdr* const id = CMSG_FIRSTHDR(&msg);
    id->cmsg_level = SOL_SOCKET;
    id->cmsg_type = SCM_TS_OPT_ID;
    id->cmsg_len = CMSG_LEN(sizeof(uint32_t));
    const ssize_t n = sys::sendmsg(fd, &msg, MSG_CONFIRM | kProbe | MSG_DONTWAIT);
    sys::close(fd);
    return n != -EINVAL;
}

}  // namespace

bool kernel_takes_stamp_ids() {
    return g_takes_ids.get([](bool& takes) { takes = try_stamp_id(); });
}

void TxStamping::set(uint32_t flags) {
    const uint32_t before = flags_.exchange(flags, std::memory_order_relaxed);
    if ((flags & ~before) & SOF_TIMESTAMPING_OPT_ID) next_id_.store(0, std::memory_order_relaxed);
}

TxStampRequest TxStamping::take(const SendControls& controls) {
    TxStampRequest request;
    const uint32_t asked = flags(), records = controls.stamping.value_or(asked);
    if (records & SOF_TIMESTAMPING_TX_SCHED) request.kinds |= kStampScheduled;
    if (records & SOF_TIMESTAMPING_TX_SOFTWARE) request.kinds |= kStampSent;
    if (request.kinds == 0) return request;
    request.with_frame = !(asked & SOF_TIMESTAMPING_OPT_TSONLY);
    request.order = next_order_.fetch_add(1, std::memory_order_relaxed);
    if (controls.stamp_id)
        request.id = *controls.stamp_id;
    else if (counts())
        request.id = next_id_.fetch_add(1, std::memory_order_relaxed);
    return request;
}

void TxStamping::give_back(const TxStampRequest& request, const SendControls& controls) {
    if (request.kinds && !controls.stamp_id && counts())
        next_id_.fetch_sub(1, std::memory_order_relaxed);
}

void TxStamping::sent_by_twin(const TxStampRequest& request) {
    SpinGuard guard(lock_);
    if (count_ == of_twin_.size()) {
        first_ = (first_ + 1) % of_twin_.size();
        count_--;
    }
    of_twin_[(first_ + count_++) % of_twin_.size()] = {
        request.order, request.kinds & kStampSent ? kStampSent : kStampScheduled};
}

void TxStamping::twin_told(TxStampKind kind) {
    SpinGuard guard(lock_);
    if (count_ == 0 || of_twin_[first_].last != kind) return;
    first_ = (first_ + 1) % of_twin_.size();
    count_--;
}

bool TxStamping::is_twin_first(uint64_t order) {
    SpinGuard guard(lock_);
    return count_ && of_twin_[first_].order < order;
}

}  // namespace vma::sock
