#include "engine/tcp_waiting.h"

#include <netinet/in.h>

namespace vma {

stats::Waiting waiting_for(const Shard& shard, const TcpConnection& c, const tcp::Numbers& n) {
    const tcp::Tcb& t = c.tcb;
    if (!t.synchronised()) return stats::Waiting::handshake;
    if (n.notsent_bytes == 0) return stats::Waiting::application;
    if (!c.path.resolved) return stats::Waiting::neighbor;
    const uint32_t flight = t.flight();
    if (flight >= t.snd.wnd) return stats::Waiting::peer_window;
    if (flight + t.snd.mss > t.cc.cwnd) return stats::Waiting::congestion;
    if (t.timers.pace_wait) return stats::Waiting::pacing;
    if (flight + t.snd.mss > t.snd.wnd) return stats::Waiting::peer_window;
    if (!shard.has_room({c.tuple.local, c.tuple.remote, IPPROTO_TCP})) return stats::Waiting::ring;
    if (n.notsent_bytes < t.snd.mss) return stats::Waiting::nagle;
    return stats::Waiting::none;
}

}  // namespace vma
