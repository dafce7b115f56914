// Every option that Linux has for a TCP and a UDP socket of AF_INET, one behaviour each: on a fresh stream, on a live connection
// (of both roles: dialled and accepted) and on a connected datagram socket. Each is read, set to each of its values, set and
// read with lengths that are short, long and none; then data goes both ways, whoever carries the sockets by then.
#include <netinet/udp.h>

#include "differential/behaviour.h"

namespace {
enum Show : unsigned {
    shown_whole,
    varies,  // what is read differs from run to run: only the error and the length are shown
};

struct Each {
    int level, name;
    Show show;
    std::vector<int> values;  // the last one does no harm
};

std::string read_back(int s, const Each& option, int length = 8) {
    int box[16] = {-1, -1};
    socklen_t len = socklen_t(length);
    if (getsockopt(s, option.level, option.name, box, &len) < 0) return strerrorname_np(errno);
    std::string text = "len " + std::to_string(len);
    if (option.show != varies && len > 0) {
        // What was not written keeps its ones.
        text += " value " + std::to_string(box[0]);
        if (len > 4) text += " " + std::to_string(box[1]);
    }
    return text;
}

std::string put_in(int s, const Each& option, const void* value, int length) {
    const int result = setsockopt(s, option.level, option.name, value, socklen_t(length));
    return result < 0 ? strerrorname_np(errno) : "then " + read_back(s, option);
}

void battery(const std::string& who, int s, const Each& option) {
    note(who + " has " + read_back(s, option));
    const int last[2] = {option.values.empty() ? 0 : option.values.back(), 0};
    for (const int value : option.values)
        note(who + " " + std::to_string(value) + ": " + put_in(s, option, &value, sizeof value));
    for (const int length : {1, 2, 3, 8, -1, 0})
        note(who + " of length " + std::to_string(length) + ": " + put_in(s, option, last, length));
    note(who + " of nothing: " + put_in(s, option, nullptr, 4));
    for (const int length : {0, 1, 3, 4, -1})
        note(who + " read into " + std::to_string(length) + ": " + read_back(s, option, length));
    socklen_t len = 4;
    SEE(getsockopt(s, option.level, option.name, nullptr, &len));
    SEE(getsockopt(s, option.level, option.name, &len, nullptr));
    put_in(s, option, last, option.values.empty() ? 0 : 4);
}

void tried(const Each& option) {
    const int s = connected(), u = udp_pair(1), fresh = tcp();
    battery("fresh", fresh, option);
    battery("stream", s, option);
    battery("datagram", u, option);
    step("tried");
    SEE(put(s, "by the stream"));
    SEE(got(s, 13, MSG_WAITALL));
    SEE(put(u, "by datagram"));
    SEE(got(u));
    step("heard");
    SEE(shutdown(s, SHUT_WR));
    SEE(rest(s));
}
}  // namespace

#define EACH(NAME, LEVEL, OPTION, SHOW, ...)                              \
    BEHAVIOUR(NAME, #OPTION ": read, set, lengths, and data afterwards"); \
    void NAME::a() { tried({LEVEL, OPTION, SHOW, {__VA_ARGS__}}); }       \
    void NAME::b() { NAME::a(); }                                         \
    static_assert(true)

EACH(so_debug, SOL_SOCKET, SO_DEBUG, shown_whole, 1, 0);
EACH(so_reuseaddr, SOL_SOCKET, SO_REUSEADDR, shown_whole, 0, 7, 1);
EACH(so_type, SOL_SOCKET, SO_TYPE, shown_whole, 1);
EACH(so_error, SOL_SOCKET, SO_ERROR, shown_whole, 1);
EACH(so_dontroute, SOL_SOCKET, SO_DONTROUTE, shown_whole, 1, 0);
EACH(so_broadcast, SOL_SOCKET, SO_BROADCAST, shown_whole, 1, 9, 0);
EACH(so_sndbuf, SOL_SOCKET, SO_SNDBUF, varies, 0, -1, 100000);
EACH(so_rcvbuf, SOL_SOCKET, SO_RCVBUF, varies, 0, -1, 100000);
EACH(so_keepalive, SOL_SOCKET, SO_KEEPALIVE, shown_whole, 1, -1, 0);
EACH(so_oobinline, SOL_SOCKET, SO_OOBINLINE, shown_whole, 1, 0);
EACH(so_no_check, SOL_SOCKET, SO_NO_CHECK, shown_whole, 1, 0);
EACH(so_priority, SOL_SOCKET, SO_PRIORITY, shown_whole, 6, 7, -1, 0);
EACH(so_linger, SOL_SOCKET, SO_LINGER, shown_whole);
EACH(so_bsdcompat, SOL_SOCKET, SO_BSDCOMPAT, shown_whole, 1);
EACH(so_reuseport, SOL_SOCKET, SO_REUSEPORT, shown_whole, 1, 0);
EACH(so_passcred, SOL_SOCKET, SO_PASSCRED, shown_whole, 1, 0);
EACH(so_peercred, SOL_SOCKET, SO_PEERCRED, shown_whole);
EACH(so_rcvlowat, SOL_SOCKET, SO_RCVLOWAT, shown_whole, 5, 0, -1, 1);
EACH(so_sndlowat, SOL_SOCKET, SO_SNDLOWAT, shown_whole, 5);
EACH(so_rcvtimeo, SOL_SOCKET, SO_RCVTIMEO, shown_whole);
EACH(so_sndtimeo, SOL_SOCKET, SO_SNDTIMEO, shown_whole);
EACH(so_rcvtimeo_new, SOL_SOCKET, SO_RCVTIMEO_NEW, shown_whole);
EACH(so_bindtodevice, SOL_SOCKET, SO_BINDTODEVICE, shown_whole);
EACH(so_attach_filter, SOL_SOCKET, SO_ATTACH_FILTER, shown_whole);
EACH(so_detach_filter, SOL_SOCKET, SO_DETACH_FILTER, shown_whole, 0);
EACH(so_lock_filter, SOL_SOCKET, SO_LOCK_FILTER, shown_whole, 1, 0, 1);
EACH(so_attach_bpf, SOL_SOCKET, SO_ATTACH_BPF, shown_whole, -1);
EACH(so_attach_reuseport_cbpf, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, shown_whole);
EACH(so_attach_reuseport_ebpf, SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, shown_whole, -1);
EACH(so_detach_reuseport_bpf, SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, shown_whole, 0);
EACH(so_peername, SOL_SOCKET, SO_PEERNAME, varies);
EACH(so_peersec, SOL_SOCKET, SO_PEERSEC, shown_whole);
EACH(so_peergroups, SOL_SOCKET, SO_PEERGROUPS, shown_whole);
EACH(so_acceptconn, SOL_SOCKET, SO_ACCEPTCONN, shown_whole, 1);
EACH(so_sndbufforce, SOL_SOCKET, SO_SNDBUFFORCE, varies, 100000);
EACH(so_rcvbufforce, SOL_SOCKET, SO_RCVBUFFORCE, varies, 100000);
EACH(so_passsec, SOL_SOCKET, SO_PASSSEC, shown_whole, 1, 0);
EACH(so_timestamp, SOL_SOCKET, SO_TIMESTAMP, shown_whole, 1, 0);
EACH(so_timestampns, SOL_SOCKET, SO_TIMESTAMPNS, shown_whole, 1, 0);
EACH(so_timestamping, SOL_SOCKET, SO_TIMESTAMPING, shown_whole, 0x18, 0x100000, 0);
EACH(so_timestamp_new, SOL_SOCKET, SO_TIMESTAMP_NEW, shown_whole, 1, 0);
EACH(so_timestampns_new, SOL_SOCKET, SO_TIMESTAMPNS_NEW, shown_whole, 1, 0);
EACH(so_mark, SOL_SOCKET, SO_MARK, shown_whole, 7, -1, 0);
EACH(so_protocol, SOL_SOCKET, SO_PROTOCOL, shown_whole, 6);
EACH(so_domain, SOL_SOCKET, SO_DOMAIN, shown_whole, 2);
EACH(so_rxq_ovfl, SOL_SOCKET, SO_RXQ_OVFL, shown_whole, 1, 0);
EACH(so_wifi_status, SOL_SOCKET, SO_WIFI_STATUS, shown_whole, 1, 0);
EACH(so_peek_off, SOL_SOCKET, SO_PEEK_OFF, shown_whole, 0, -1);
EACH(so_nofcs, SOL_SOCKET, SO_NOFCS, shown_whole, 1, 0);
EACH(so_select_err_queue, SOL_SOCKET, SO_SELECT_ERR_QUEUE, shown_whole, 1, 0);
EACH(so_busy_poll, SOL_SOCKET, SO_BUSY_POLL, shown_whole, 50, -1, 0);
EACH(so_prefer_busy_poll, SOL_SOCKET, SO_PREFER_BUSY_POLL, shown_whole, 1, 0);
EACH(so_busy_poll_budget, SOL_SOCKET, SO_BUSY_POLL_BUDGET, shown_whole, 64, 70000, 0);
EACH(so_max_pacing_rate, SOL_SOCKET, SO_MAX_PACING_RATE, shown_whole, 100000000, -1);
EACH(so_bpf_extensions, SOL_SOCKET, SO_BPF_EXTENSIONS, shown_whole, 1);
EACH(so_incoming_cpu, SOL_SOCKET, SO_INCOMING_CPU, varies, 0, -1);
EACH(so_cnx_advice, SOL_SOCKET, SO_CNX_ADVICE, shown_whole, 2, 1);
EACH(so_meminfo, SOL_SOCKET, SO_MEMINFO, varies);
EACH(so_incoming_napi_id, SOL_SOCKET, SO_INCOMING_NAPI_ID, varies);
EACH(so_cookie, SOL_SOCKET, SO_COOKIE, varies);
EACH(so_zerocopy, SOL_SOCKET, SO_ZEROCOPY, shown_whole, 2, 1, 0);
EACH(so_txtime, SOL_SOCKET, SO_TXTIME, shown_whole);
EACH(so_bindtoifindex, SOL_SOCKET, SO_BINDTOIFINDEX, shown_whole, -1, 0);
EACH(so_netns_cookie, SOL_SOCKET, SO_NETNS_COOKIE, varies);
EACH(so_buf_lock, SOL_SOCKET, SO_BUF_LOCK, shown_whole, 3, 4, 0);
EACH(so_reserve_mem, SOL_SOCKET, SO_RESERVE_MEM, shown_whole, -1, 0);
EACH(so_txrehash, SOL_SOCKET, SO_TXREHASH, shown_whole, 0, 2, 1);

EACH(ip_tos, IPPROTO_IP, IP_TOS, shown_whole, 0x10, 3, 300, 0);
EACH(ip_ttl, IPPROTO_IP, IP_TTL, shown_whole, 1, 0, 255, 256, -1);
EACH(ip_hdrincl, IPPROTO_IP, IP_HDRINCL, shown_whole, 1);
EACH(ip_options, IPPROTO_IP, IP_OPTIONS, shown_whole);
EACH(ip_router_alert, IPPROTO_IP, IP_ROUTER_ALERT, shown_whole, 1);
EACH(ip_recvopts, IPPROTO_IP, IP_RECVOPTS, shown_whole, 1, 0);
EACH(ip_retopts, IPPROTO_IP, IP_RETOPTS, shown_whole, 1, 0);
EACH(ip_pktinfo, IPPROTO_IP, IP_PKTINFO, shown_whole, 1, 0);
EACH(ip_pktoptions, IPPROTO_IP, IP_PKTOPTIONS, shown_whole);
EACH(ip_mtu_discover, IPPROTO_IP, IP_MTU_DISCOVER, shown_whole, 0, 2, 3, 4, 5, 6, -1, 1);
EACH(ip_recverr, IPPROTO_IP, IP_RECVERR, shown_whole, 1, 0);
EACH(ip_recvttl, IPPROTO_IP, IP_RECVTTL, shown_whole, 1, 0);
EACH(ip_recvtos, IPPROTO_IP, IP_RECVTOS, shown_whole, 1, 0);
EACH(ip_mtu, IPPROTO_IP, IP_MTU, shown_whole, 1400);
EACH(ip_freebind, IPPROTO_IP, IP_FREEBIND, shown_whole, 1, 0);
EACH(ip_passsec, IPPROTO_IP, IP_PASSSEC, shown_whole, 1, 0);
EACH(ip_transparent, IPPROTO_IP, IP_TRANSPARENT, shown_whole, 1, 0);
EACH(ip_recvorigdstaddr, IPPROTO_IP, IP_RECVORIGDSTADDR, shown_whole, 1, 0);
EACH(ip_minttl, IPPROTO_IP, IP_MINTTL, shown_whole, 64, 256, -1, 0);
EACH(ip_nodefrag, IPPROTO_IP, IP_NODEFRAG, shown_whole, 1);
EACH(ip_checksum, IPPROTO_IP, IP_CHECKSUM, shown_whole, 1, 0);
EACH(ip_bind_address_no_port, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, shown_whole, 1, 0);
EACH(ip_recvfragsize, IPPROTO_IP, IP_RECVFRAGSIZE, shown_whole, 1, 0);
EACH(ip_recverr_rfc4884, IPPROTO_IP, IP_RECVERR_RFC4884, shown_whole, 1, 2, 0);
EACH(ip_multicast_if, IPPROTO_IP, IP_MULTICAST_IF, shown_whole, 0);
EACH(ip_multicast_ttl, IPPROTO_IP, IP_MULTICAST_TTL, shown_whole, 5, 256, -1);
EACH(ip_multicast_loop, IPPROTO_IP, IP_MULTICAST_LOOP, shown_whole, 0, 1);
EACH(ip_multicast_all, IPPROTO_IP, IP_MULTICAST_ALL, shown_whole, 0, 2, 1);
EACH(ip_add_membership, IPPROTO_IP, IP_ADD_MEMBERSHIP, shown_whole);
EACH(ip_drop_membership, IPPROTO_IP, IP_DROP_MEMBERSHIP, shown_whole);
EACH(ip_mcast_join_group, IPPROTO_IP, MCAST_JOIN_GROUP, shown_whole);
EACH(ip_unicast_if, IPPROTO_IP, IP_UNICAST_IF, shown_whole, 0);
EACH(ip_local_port_range, IPPROTO_IP, 51, shown_whole, 0x1000ffff, 0);

EACH(tcp_nodelay, IPPROTO_TCP, TCP_NODELAY, shown_whole, 1, -1, 0);
EACH(tcp_maxseg, IPPROTO_TCP, TCP_MAXSEG, varies, 87, 0, 40000);
EACH(tcp_cork, IPPROTO_TCP, TCP_CORK, shown_whole, 1, 0);
EACH(tcp_keepidle, IPPROTO_TCP, TCP_KEEPIDLE, shown_whole, 1, 32767, 32768, 0, 7200);
EACH(tcp_keepintvl, IPPROTO_TCP, TCP_KEEPINTVL, shown_whole, 1, 32768, 0, 75);
EACH(tcp_keepcnt, IPPROTO_TCP, TCP_KEEPCNT, shown_whole, 127, 128, 0, 9);
EACH(tcp_syncnt, IPPROTO_TCP, TCP_SYNCNT, shown_whole, 127, 128, 0, 6);
EACH(tcp_linger2, IPPROTO_TCP, TCP_LINGER2, shown_whole, 1000, -1, 0);
EACH(tcp_window_clamp, IPPROTO_TCP, TCP_WINDOW_CLAMP, varies, 1, 0, 100000);
EACH(tcp_quickack, IPPROTO_TCP, TCP_QUICKACK, varies, 2, 0, 1);
EACH(tcp_congestion, IPPROTO_TCP, TCP_CONGESTION, varies);
EACH(tcp_md5_signature, IPPROTO_TCP, TCP_MD5SIG, shown_whole);
EACH(tcp_thin_linear_timeouts, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, shown_whole, 2, 1, 0);
EACH(tcp_thin_dupack, IPPROTO_TCP, TCP_THIN_DUPACK, shown_whole, 2, 1, 0);
EACH(tcp_user_timeout, IPPROTO_TCP, TCP_USER_TIMEOUT, shown_whole, 30000, -1, 0);
EACH(tcp_repair, IPPROTO_TCP, TCP_REPAIR, shown_whole, 2, -1);
EACH(tcp_repair_queue, IPPROTO_TCP, TCP_REPAIR_QUEUE, shown_whole, 1);
EACH(tcp_queue_seq, IPPROTO_TCP, TCP_QUEUE_SEQ, shown_whole, 1);
EACH(tcp_repair_options, IPPROTO_TCP, TCP_REPAIR_OPTIONS, shown_whole);
EACH(tcp_window_repair, IPPROTO_TCP, TCP_REPAIR_WINDOW, shown_whole);
EACH(tcp_timestamp, IPPROTO_TCP, TCP_TIMESTAMP, varies, 1);
EACH(tcp_notsent_lowat, IPPROTO_TCP, TCP_NOTSENT_LOWAT, shown_whole, 10000, -1, 0);
EACH(tcp_save_syn, IPPROTO_TCP, TCP_SAVE_SYN, shown_whole, 1, 3, 0);
EACH(tcp_saved_syn, IPPROTO_TCP, TCP_SAVED_SYN, shown_whole, 1);
EACH(tcp_ulp, IPPROTO_TCP, TCP_ULP, shown_whole);
EACH(tcp_inq, IPPROTO_TCP, TCP_INQ, shown_whole, 1, 2, 0);
EACH(tcp_tx_delay, IPPROTO_TCP, TCP_TX_DELAY, shown_whole, -1, 0);

EACH(udp_cork, IPPROTO_UDP, UDP_CORK, shown_whole, 1, 0);
EACH(udp_encap, IPPROTO_UDP, UDP_ENCAP, shown_whole, 99, 0);
EACH(udp_no_check6_tx, IPPROTO_UDP, UDP_NO_CHECK6_TX, shown_whole, 1, 0);
EACH(udp_no_check6_rx, IPPROTO_UDP, UDP_NO_CHECK6_RX, shown_whole, 1, 0);
EACH(udp_segment, IPPROTO_UDP, UDP_SEGMENT, shown_whole, 500, 70000, -1, 0);
EACH(udp_gro, IPPROTO_UDP, UDP_GRO, shown_whole, 1, 0);

BEHAVIOUR(tcp_cc_info, "TCP_CC_INFO: nothing to tell with reno; it cannot be set");
void tcp_cc_info::a() {
    const int s = connected();
    SEE(setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    SEE(read_back(s, {IPPROTO_TCP, TCP_CC_INFO, shown_whole, {}}));
    SEE(set(s, IPPROTO_TCP, TCP_CC_INFO));
    SEE(put(s, "by the stream"));
    SEE(got(s, 13, MSG_WAITALL));
}
void tcp_cc_info::b() { tcp_cc_info::a(); }
