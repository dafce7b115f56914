// stats_cost DIRECTORY WHAT TIMES: does one thing TIMES times, for callgrind to count: "publish" a TCP socket's whole row, "due"
// look whether a viewer asks when none does, "record" a time in a histogram, "frame" a datagram from the ring to its reader and
// one back. DIRECTORY "": there is no page.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/own_fd.h"
#include "engine/shard.h"
#include "stats/publisher.h"
#include "support/frames.h"
#include "support/quiet_ring.h"

namespace {

using namespace vma;
using namespace vma::stats;

const Endpoint kHere{IpAddr::v4(10, 9, 9, 1), 7000}, kThere{IpAddr::v4(10, 9, 9, 2), 7001};

// The same frame for ever, one a look.
class OneFrame final : public QuietRing {
  public:
    OneFrame(PacketPool& pool, ByteView frame) : pool_(pool), frame_(frame) {}
    unsigned recv(std::span<Packet> out) override {
        out[0] = pool_.take(frame_.size());
        if (!out[0]) return 0;
        std::memcpy(out[0]->data, frame_.data(), frame_.size());
        out[0]->len = uint32_t(frame_.size());
        return 1;
    }

  private:
    PacketPool& pool_;
    ByteView frame_;
};

bool frames(long times) {
    OwnFd memory;
    auto arena = Arena::create(Arena::kDefaultReserve, &memory);
    if (!arena) return false;
    Shard::Parts parts;
    parts.arena = *arena;
    parts.pool = (*arena)->make<PacketPool>(**arena, PoolLimits{});
    test::FrameSpec in, out;
    in.src = out.dst = kThere;
    in.dst = out.src = kHere;
    const test::Frame received = test::build_frame(in);
    test::Frame sent = test::build_frame(out);
    parts.ring = new OneFrame(*parts.pool, received.view());
    parts.secret = 1;
    Shard* shard = Shard::make(parts);
    if (shard == nullptr) return false;
    const TxFrame answer = sent.plain();
    bool good = true;
    {
        LeaseGuard lease(shard->lease());
        UdpEndpoint endpoint(kHere);
        if (!shard->udp().demux.insert(endpoint.tuple(), endpoint)) return false;
        for (long i = 0; i < times; i++) {
            UdpDatagram datagram;
            good &= shard->poll() == 1 && endpoint.peek(datagram);
            endpoint.consume();
            good &= shard->send(answer) == 0;
        }
        shard->udp().demux.remove(endpoint.tuple());
    }
    shard->close_ring();
    return good;
}

// fn(i) for each turn; true: all said so.
template <class Fn>
bool turns(long times, Fn&& fn) {
    bool good = true;
    for (long i = 0; i < times; i++) good &= fn(i);
    return good;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    configure(argv[1], "cost", "0");
    RowHandle row;
    SocketIdentity id;
    id.fd = 7;
    id.protocol = IPPROTO_TCP;
    id.inode = id.cookie = 7;
    id.path = Path::offloaded;
    set_socket(row, id);
    SocketNumbers numbers;
    TcpNumbers tcp;
    Histogram histogram;
    const std::string_view what = argv[2];
    const long times = std::atol(argv[3]);
    bool good = false;
    if (what == "publish")
        good = turns(times, [&](long i) {
            numbers.rx_packets = tcp.bytes_acked = uint64_t(i);
            set_socket(row, id, &numbers, &tcp);
            return true;
        });
    else if (what == "due")
        good = turns(times, [](long i) { return !due(Instant{i + 1}); });
    else if (what == "record")
        good = turns(times, [&](long i) {
            histogram.record(uint64_t(i));
            return true;
        });
    else if (what == "frame")
        good = frames(times);
    withdraw(true);
    return good ? 0 : 1;
}
