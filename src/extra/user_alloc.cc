// ioctl() of the table: what the program sets for the library as a whole, as a chain of control messages.
#include <errno.h>
#include <sys/socket.h>

#include <cstring>

#include "engine/runtime.h"
#include "engine/user_memory.h"
#include "extra/boundary.h"
#include "extra/functions.h"

namespace vma::extra {
namespace {

// 0, or an errno.
int set_user_memory(const cmsghdr* header) {
    vma_cmsg_ioctl_user_alloc_t wish;
    if (header->cmsg_len != CMSG_LEN(sizeof wish)) return EINVAL;
    std::memcpy(&wish, CMSG_DATA(header), sizeof wish);
    constexpr int kBoth = VMA_IOCTL_USER_ALLOC_FLAG_TX | VMA_IOCTL_USER_ALLOC_FLAG_RX;
    if (wish.memalloc == nullptr || wish.memfree == nullptr || (wish.flags & kBoth) == 0)
        return EINVAL;
    if (!Runtime::shards().empty()) return EINVAL;  // there are rings already, in other memory
    UserMemoryWish now = ring_memory_wish();
    if (wish.flags & VMA_IOCTL_USER_ALLOC_FLAG_RX) now.receive = {wish.memalloc, wish.memfree};
    if (wish.flags & VMA_IOCTL_USER_ALLOC_FLAG_TX) now.send = {wish.memalloc, wish.memfree};
    wish_ring_memory(now);
    return 0;
}

}  // namespace

int ioctl(void* cmsg_hdr, size_t cmsg_len) {
    return ask_library([=] {
        msghdr chain{};
        chain.msg_control = cmsg_hdr;
        chain.msg_controllen = cmsg_len;
        cmsghdr* header = cmsg_hdr ? CMSG_FIRSTHDR(&chain) : nullptr;
        if (header == nullptr) return -EINVAL;
        for (; header != nullptr; header = CMSG_NXTHDR(&chain, header)) {
            if (header->cmsg_type != CMSG_VMA_IOCTL_USER_ALLOC) continue;
            if (const int error = set_user_memory(header)) return -error;
        }
        return 0;
    });
}

}  // namespace vma::extra
