#include "engine/frame_log.h"

#include <string>

#include "base/log.h"
#include "stats/frame_watch.h"
#include "wire/ethernet.h"
#include "wire/ipv4.h"
#include "wire/tcp.h"
#include "wire/udp.h"

namespace vma {
namespace {

constexpr bool kCompiledIn = LogLevel::finer <= kMaxLogLevel;

std::string flags_of(uint8_t flags) {
    std::string text;
    for (int i = 0; i < 8; i++)
        if (flags & (1 << i)) text += "FSRPAUEC"[i];
    return text;
}

std::string address(uint32_t a, int port) {
    std::string text = fmt::format("{}.{}.{}.{}", a >> 24, a >> 16 & 255, a >> 8 & 255, a & 255);
    return port < 0 ? text : fmt::format("{}:{}", text, port);
}

std::string between(const Ipv4Header& ip, int from, int to) {
    return address(ip.src, from) + " > " + address(ip.dst, to);
}

// What a frame is. The headers are enough; lengths are those that they say, as a super-frame's payload is not in `frame`.
[[maybe_unused]] std::string text_of(ByteView frame) {
    const auto ethernet = parse_ethernet(frame);
    if (!ethernet) return "no Ethernet frame";
    const auto packet = parse_ipv4_quoted(ethernet->payload);
    if (!packet) return fmt::format("type {:#06x}", ethernet->header.type);
    const Ipv4Header& ip = packet->header;
    if (ip.fragment_offset != 0)
        return fmt::format("{} protocol {} fragment at {}", between(ip, -1, -1), ip.protocol,
                           ip.fragment_offset);
    const ByteView segment = packet->payload;
    if (ip.protocol == ip_protocol::udp && segment.size() >= kUdpSize)
        return fmt::format("{} UDP",
                           between(ip, load_be16(segment.data()), load_be16(segment.data() + 2)));
    if (ip.protocol == ip_protocol::tcp)
        if (const auto tcp = parse_tcp(segment)) {
            const TcpHeader& h = tcp->header;
            return fmt::format("{} TCP {} seq {} ack {} window {}",
                               between(ip, h.src_port, h.dst_port), flags_of(h.flags), h.seq.v,
                               h.ack.v, h.window);
        }
    return fmt::format("{} protocol {}", between(ip, -1, -1), ip.protocol);
}

}  // namespace

void frame_log_level_changed() {
    if constexpr (kCompiledIn) stats::watch_frames(log_config().level >= LogLevel::fine);
}

void log_frame_in(int ifindex, ByteView head, uint32_t bytes, DropReason drop) {
    if constexpr (kCompiledIn) {
        if (drop != DropReason::none)
            vma_log(fine, "frame", "dropped ({}) interface {}: {}, {} bytes", drop_name(drop),
                    ifindex, text_of(head), bytes);
        else
            vma_log(finer, "frame", "in interface {}: {}, {} bytes", ifindex, text_of(head), bytes);
    }
}

void log_frame_out(int ifindex, ByteView head, uint32_t bytes) {
    if constexpr (kCompiledIn)
        vma_log(finer, "frame", "out interface {}: {}, {} bytes", ifindex, text_of(head), bytes);
}

}  // namespace vma
