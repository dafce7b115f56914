#include "sock/send_controls.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <cstring>

#include "sock/tx_stamping.h"

namespace vma::sock {
namespace {

// The value of a message that has just the size of a T.
template <class T>
bool read_value(const cmsghdr& header, const uint8_t* data, std::optional<T>& out) {
    if (header.cmsg_len != CMSG_LEN(sizeof(T))) return false;
    T value;
    std::memcpy(&value, data, sizeof value);
    out = value;
    return true;
}

bool read_one(const cmsghdr& header, const uint8_t* data, SendControls& out) {
    if (header.cmsg_level == IPPROTO_UDP && header.cmsg_type == UDP_SEGMENT)
        return read_value(header, data, out.segment);
    if (header.cmsg_level != SOL_SOCKET) return false;
    switch (header.cmsg_type) {
        case SO_TIMESTAMPING_OLD:
        case SO_TIMESTAMPING_NEW:
            return read_value(header, data, out.stamping) && !(*out.stamping & ~kRingRecords);
        case SCM_TS_OPT_ID:
            return read_value(header, data, out.stamp_id);
        default:
            return false;
    }
}

}  // namespace

SendControls read_send_controls(const msghdr& msg) {
    SendControls out;
    const auto* const bytes = static_cast<const uint8_t*>(msg.msg_control);
    for (size_t at = 0; at <= msg.msg_controllen && msg.msg_controllen - at >= sizeof(cmsghdr);) {
        cmsghdr header;
        std::memcpy(&header, bytes + at, sizeof header);
        if (header.cmsg_len < sizeof header || header.cmsg_len > msg.msg_controllen - at) {
            out.others = true;
            break;
        }
        if (!read_one(header, bytes + at + CMSG_LEN(0), out)) out.others = true;
        at += CMSG_ALIGN(header.cmsg_len);
    }
    return out;
}

}  // namespace vma::sock
