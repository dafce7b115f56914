#include "sock/udp_message.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/time.h>
#include <time.h>
// after the timespec that it uses
#include <linux/errqueue.h>

#include <algorithm>
#include <cstring>

#include "sock/udp_socket.h"
#include "wire/ethernet.h"
#include "wire/ipv4.h"
#include "wire/udp.h"

namespace vma::sock {
namespace {

class ControlWriter {
  public:
    ControlWriter(msghdr& msg)
        : msg_(msg),
          next_(static_cast<uint8_t*>(msg.msg_control)),
          left_(next_ ? msg.msg_controllen : 0) {}
    template <class T>
    void put(int level, int type, const T& value) {
        // As the kernel: a header that does not fit is left out, data that does not fit is cut; both set MSG_CTRUNC.
        if (left_ < sizeof(cmsghdr)) {
            msg_.msg_flags |= MSG_CTRUNC;
            return;
        }
        size_t len = CMSG_LEN(sizeof(T));
        if (len > left_) {
            msg_.msg_flags |= MSG_CTRUNC;
            len = left_;
        }
        cmsghdr header{};
        header.cmsg_len = len;
        header.cmsg_level = level;
        header.cmsg_type = type;
        std::memcpy(next_, &header, sizeof header);
        std::memcpy(next_ + CMSG_LEN(0), &value, len - CMSG_LEN(0));
        const size_t space = std::min<size_t>(CMSG_SPACE(sizeof(T)), left_);
        next_ += space;
        left_ -= space;
        used_ += space;
    }
    size_t used() const { return used_; }

  private:
    msghdr& msg_;
    uint8_t* next_;
    size_t left_;
    size_t used_ = 0;
};

timespec to_timespec(int64_t ns) { return {ns / 1000000000, ns % 1000000000}; }

// The stamps in each form that is asked for; `device_ns` 0: the device has made none. The _NEW forms differ in their names alone
// where time_t has 64 bits.
void put_stamps(ControlWriter& out, int64_t realtime_ns, int64_t device_ns, uint32_t wanted) {
    const bool in_new_form = wanted & kNewStamps;
    const timespec ts = to_timespec(realtime_ns);
    static_assert(sizeof ts.tv_sec == 8 && sizeof ts == sizeof(__kernel_timespec));
    if (wanted & kWantTimestampNs)
        out.put(SOL_SOCKET, in_new_form ? SO_TIMESTAMPNS_NEW : SO_TIMESTAMPNS_OLD, ts);
    else if (wanted & kWantTimestamp)
        out.put(SOL_SOCKET, in_new_form ? SO_TIMESTAMP_NEW : SO_TIMESTAMP_OLD,
                timeval{ts.tv_sec, ts.tv_nsec / 1000});
    const bool of_device = (wanted & kWantHwStamps) && device_ns != 0;
    if ((wanted & kWantStamping) || of_device)
        out.put(SOL_SOCKET, in_new_form ? SO_TIMESTAMPING_NEW : SO_TIMESTAMPING_OLD,
                scm_timestamping{{wanted & kWantStamping ? ts : timespec{},
                                  {},
                                  of_device ? to_timespec(device_ns) : timespec{}}});
}

// The control messages of level IPPROTO_IP.
void put_headers(ControlWriter& out, const UdpRxInfo& info, int ifindex, uint32_t wanted,
                 uint32_t local_v4) {
    if (wanted & kWantPktinfo) {
        in_pktinfo pktinfo{};
        pktinfo.ipi_ifindex = ifindex;
        pktinfo.ipi_spec_dst.s_addr = htonl(local_v4);
        pktinfo.ipi_addr.s_addr = htonl(info.destination.addr.v4_host());
        out.put(IPPROTO_IP, IP_PKTINFO, pktinfo);
    }
    if (wanted & kWantTtl) out.put(IPPROTO_IP, IP_TTL, int(info.ttl));
    if (wanted & kWantTos) out.put(IPPROTO_IP, IP_TOS, info.tos);
    if (wanted & kWantOrigDst)
        out.put(IPPROTO_IP, IP_RECVORIGDSTADDR, info.destination.to_sockaddr_in());
}

void put_controls(const UdpRxInfo& info, const PacketMeta& meta, msghdr& msg, const Told& told) {
    const uint32_t wanted = told.wanted;
    ControlWriter out(msg);
    put_stamps(out, info.realtime_ns, meta.hw_time_ns, wanted);
    if (told.drops) out.put(SOL_SOCKET, SO_RXQ_OVFL, told.drops);
    if ((wanted & kWantGro) && info.whole) out.put(IPPROTO_UDP, UDP_GRO, int(info.segment_size));
    put_headers(out, info, int(meta.ifindex), wanted, told.local_v4);
    msg.msg_controllen = out.used();
}

// Returns how many bytes there was room for.
size_t copy_bytes_out(ByteView bytes, msghdr& msg) {
    size_t copied = 0;
    for (size_t i = 0; i < msg.msg_iovlen && copied < bytes.size(); i++) {
        const size_t n = std::min(msg.msg_iov[i].iov_len, bytes.size() - copied);
        if (n) std::memcpy(msg.msg_iov[i].iov_base, bytes.data() + copied, n);
        copied += n;
    }
    if (copied < bytes.size()) msg.msg_flags |= MSG_TRUNC;
    return copied;
}

// The headers of a frame that was sent, as if it had been received. False: it has none.
bool read_headers(ByteView frame, UdpRxInfo& out) {
    const Parsed<EthernetView> ethernet = parse_ethernet(frame);
    if (!ethernet) return false;
    const Parsed<Ipv4View> ip = parse_ipv4_quoted(ethernet->payload);
    if (!ip || ip->payload.size() < kUdpSize) return false;
    const uint8_t* const ports = ip->payload.data();
    out.source = {IpAddr::v4(ip->header.src), load_be16(ports)};
    out.destination = {IpAddr::v4(ip->header.dst), load_be16(ports + 2)};
    out.ttl = ip->header.ttl;
    out.tos = ip->header.tos;
    return true;
}

}  // namespace

void copy_source_out(const UdpRxInfo& info, msghdr& msg) {
    msg.msg_flags = 0;
    if (msg.msg_name == nullptr) return;
    const sockaddr_in from = info.source.to_sockaddr_in();
    std::memcpy(msg.msg_name, &from, std::min<size_t>(msg.msg_namelen, sizeof from));
    msg.msg_namelen = sizeof from;
}

long copy_datagram_out(const UdpDatagram& datagram, msghdr& msg, int flags, const Told& told) {
    const UdpRxInfo& info = *datagram.info;
    copy_source_out(info, msg);
    const size_t copied = copy_bytes_out(datagram.payload, msg);
    if (told.wanted)
        put_controls(info, *datagram.meta, msg, told);
    else
        msg.msg_controllen = 0;
    return long(flags & MSG_TRUNC ? datagram.payload.size() : copied);
}

long copy_stamp_out(PacketBuf& stamp, msghdr& msg, uint32_t wanted, int ifindex) {
    const TxStamp& of = stamp.as<TxStamp>();
    struct {
        sock_extended_err error{};
        sockaddr_in offender{};
    } told;
    told.error.ee_errno = ENOMSG;
    told.error.ee_origin = SO_EE_ORIGIN_TIMESTAMPING;
    told.error.ee_info = of.kind == kStampSent ? SCM_TSTAMP_SND : SCM_TSTAMP_SCHED;
    told.error.ee_data = of.id;
    msg.msg_flags = MSG_ERRQUEUE;
    if (msg.msg_name) msg.msg_namelen = 0;
    const size_t copied = copy_bytes_out(stamp.view(), msg);
    ControlWriter out(msg);
    put_stamps(out, of.realtime_ns, 0, wanted);
    UdpRxInfo headers;
    if (ifindex && read_headers(stamp.view(), headers)) {
        told.offender = Endpoint{headers.source.addr, 0}.to_sockaddr_in();
        put_headers(out, headers, ifindex, wanted, headers.source.addr.v4_host());
    }
    out.put(IPPROTO_IP, IP_RECVERR, told);
    msg.msg_controllen = out.used();
    return long(copied);
}

}  // namespace vma::sock
