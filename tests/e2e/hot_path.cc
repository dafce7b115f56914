// hot_path STEP TIMES: two shards on a virtual wire in this process; does STEP of the data path TIMES times, for callgrind to
// count (--collect-atstart=no). Counted is what the stack does, not what the wire does, nor what comes in between. The mlx5 ring is alone,
// on two devices of the software HCA, which works when the ring calls it, uncounted.
//
//   udp_send     a datagram of 64 bytes: its headers, and to the ring
//   udp_receive  the same from the ring to its reader
//   tcp_send     write() of 64 bytes and their segment to the ring
//   tcp_receive  the segment from the ring to its reader, who copies it; every second one is acknowledged
//   tcp_ack      such an acknowledgement, where it arrives
//   mlx5_send    a frame with 64 bytes of payload to an mlx5 ring, until its doorbell has been rung
//   mlx5_receive such a frame from the ring, and its buffer back to the device
//   tcp_accept   SYN and ACK of a new connection where they arrive, and accept()
#include <netinet/in.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/own_fd.h"
#include "dev/verbs/library.h"
#include "dev/verbs/verbs_ring.h"
#include "engine/network_monitor.h"
#include "engine/shard.h"
#include "support/frames.h"
#include "support/virtual_wire.h"

namespace {

using namespace vma;

constexpr uint32_t kText = 64;

class Counted {
  public:
    explicit Counted(bool on = true) : on_(on) {
        if (on_) CALLGRIND_TOGGLE_COLLECT;
    }
    ~Counted() {
        if (on_) CALLGRIND_TOGGLE_COLLECT;
    }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

  private:
    bool on_;
};

// One end of the wire, whose own work is left out while something is counted.
class Uncounted final : public Ring {
  public:
    explicit Uncounted(Ring& wire) : wire_(wire), caps_(wire.caps()) {
        caps_.has_neighbors = false;
    }
    bool counting = false;

    const RingCaps& caps() const override { return caps_; }
    unsigned recv(std::span<Packet> out) override {
        const Counted off(counting);
        return wire_.recv(out);
    }
    unsigned send(std::span<const TxFrame> frames, int* why) override {
        const Counted off(counting);
        return wire_.send(frames, why);
    }
    RingBacklog backlog() const override { return wire_.backlog(); }
    Status steer(const FlowKey& key, int twin) override { return wire_.steer(key, twin); }
    void unsteer(const FlowKey& key) override { wire_.unsteer(key); }
    int wake_fd() const override { return wire_.wake_fd(); }
    bool arm() override { return wire_.arm(); }
    void disarm() override { wire_.disarm(); }
    RingCounters counters() const override { return wire_.counters(); }

  private:
    Ring& wire_;
    RingCaps caps_;
};

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "hot_path: %s\n", what);
    std::exit(1);
}
void check(bool good, const char* what) {
    if (!good) fail(what);
}

// A host: an arena, a pool, a shard and its ring.
struct Host {
    OwnFd memory;
    Arena* arena = nullptr;
    PacketPool* pool = nullptr;
    Uncounted* ring = nullptr;  // the shard's
    Shard* shard = nullptr;

    Host() {
        const auto made = Arena::create(Arena::kDefaultReserve, &memory);
        check(made.ok(), "no memory");
        arena = *made;
        pool = arena->make<PacketPool>(*arena, PoolLimits{});
    }
    void open(Ring& wire) {
        Shard::Parts parts;
        parts.arena = arena;
        parts.pool = pool;
        parts.ring = ring = new Uncounted(wire);
        parts.secret = 1;
        parts.secret2 = 2;
        shard = Shard::make(parts);
        check(shard != nullptr, "no shard");
    }
    // What `step` does under the lease, counted or not.
    template <class Step>
    void run(bool count, Step&& step) {
        LeaseGuard lease(shard->lease());
        ring->counting = count;
        {
            const Counted counted(count);
            step();
        }
        ring->counting = false;
    }
    void look(bool count = false) {
        run(count, [&] { shard->poll(); });
    }
};

class Stage {
  public:
    Stage() : wire_({}, *client.pool, *server.pool) {
        client.open(wire_.end(0));
        server.open(wire_.end(1));
        auto monitor = NetworkMonitor::of_this_namespace();
        check(monitor.ok(), "no netlink");
        monitor_ = *monitor;
    }
    ~Stage() {
        client.shard->close_ring();
        server.shard->close_ring();
    }
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;

    void udp(std::string_view counted, long times);
    void tcp(std::string_view counted, long times);
    void accepts(long times);

  private:
    TcpListener* listen() {
        LeaseGuard lease(server.shard->lease());
        check(server.shard->steer({kServer, {}, IPPROTO_TCP}, -1).ok(), "no flow");
        const auto made = server.shard->tcp().listen(kServer, {}, 16, *monitor_, this);
        check(made.ok(), "no listener");
        return *made;
    }
    // Opens one; the server's side of it is counted or not.
    struct Both {
        TcpConnection *active, *passive;
    };
    Both open(TcpListener& listener, uint16_t port, bool count) {
        Both both{};
        client.run(false, [&] {
            TcpPath path;
            path.resolved = true;
            tcp::TcpConfig config;
            config.nodelay = true;
            const auto made = client.shard->tcp().connect({{kClient.addr, port}, kServer}, config,
                                                          path, *monitor_, this, monotonic_now());
            check(made.ok(), "no connection");
            both.active = *made;
            client.shard->tcp().flush(monotonic_now());
        });
        server.look(count);
        client.look();
        server.look(count);
        server.run(count, [&] { both.passive = server.shard->tcp().accept(listener, this); });
        check(both.passive != nullptr, "not accepted");
        return both;
    }
    void end(const Both& both) {
        const auto abort = [](Host& host, TcpConnection& c) {
            host.run(false, [&] {
                tcp::Actions actions;
                tcp::abort(c.tcb, 0, actions);
                host.shard->tcp().absorb(c, actions, monotonic_now());
                host.shard->tcp().pull(c, monotonic_now());
                host.shard->tcp().release_owner(c, 0, monotonic_now());
                host.shard->tcp().flush(monotonic_now());
            });
        };
        abort(client, *both.active);
        server.look();
        abort(server, *both.passive);
        client.look();
    }

    static constexpr Endpoint kClient{IpAddr::v4(10, 9, 9, 1), 7000};
    static constexpr Endpoint kServer{IpAddr::v4(10, 9, 9, 2), 7001};
    Host client, server;
    test::VirtualWire wire_;
    std::shared_ptr<NetworkMonitor> monitor_;
    char text_[kText] = {};
};

void Stage::udp(std::string_view counted, long times) {
    UdpTemplateParams params;
    params.src = kClient.addr.v4_host();
    params.dst = kServer.addr.v4_host();
    params.src_port = kClient.port;
    params.dst_port = kServer.port;
    const UdpTemplate head(params);
    UdpEndpoint endpoint(kServer);
    server.run(false, [&] {
        check(server.shard->steer({kServer, {}, IPPROTO_UDP}, -1).ok(), "no flow");
        check(server.shard->udp().demux.insert(endpoint.tuple(), endpoint).ok(), "no endpoint");
    });
    for (long i = 0; i < times; i++) {
        client.run(counted == "udp_send", [&] {
            uint8_t bytes[kUdpMaxHead];
            const iovec payload{text_, sizeof text_};
            const auto made = emit_udp_datagram(head, UdpChecksum::offload, {&payload, 1}, kText,
                                                uint16_t(i), bytes);
            TxFrame frame;
            frame.head = {bytes, made->size};
            frame.payload = &payload;
            frame.payload_count = 1;
            frame.payload_len = kText;
            frame.csum_start = made->csum_start;
            frame.csum_offset = made->csum_offset;
            check(client.shard->send(frame) == 0, "not sent");
        });
        server.run(counted == "udp_receive", [&] {
            UdpDatagram datagram;
            check(server.shard->poll() == 1 && endpoint.peek(datagram), "nothing came");
            std::memcpy(text_, datagram.payload.data(), datagram.payload.size());
            endpoint.consume();
        });
    }
    server.run(false, [&] { server.shard->udp().demux.remove(endpoint.tuple()); });
}

void Stage::tcp(std::string_view counted, long times) {
    TcpListener* const listener = listen();
    const Both both = open(*listener, kClient.port, false);
    for (long i = 0; i < times; i++) {
        client.run(counted == "tcp_send", [&] {
            const Instant now = monotonic_now();
            tcp::Actions actions;
            check(tcp::write(both.active->tcb, text_, kText, now, actions) == kText, "not written");
            client.shard->tcp().pull(*both.active, now);
            client.shard->tcp().flush(now);
        });
        server.run(counted == "tcp_receive", [&] {
            server.shard->poll();
            const Instant now = monotonic_now();
            tcp::Actions actions;
            check(tcp::read(both.passive->tcb, text_, kText, now, actions) == kText,
                  "nothing came");
            if (actions.events || actions.has_reply)
                server.shard->tcp().absorb(*both.passive, actions, now);
            server.shard->tcp().flush(now);
        });
        client.look(counted == "tcp_ack");
    }
    end(both);
}

void Stage::accepts(long times) {
    TcpListener* const listener = listen();
    for (long i = 0; i < times; i++) end(open(*listener, uint16_t(10000 + i % 50000), true));
}

// Two mlx5 rings, between which one frame after the other goes.
class Card {
  public:
    Card() : wire_("/dev/shm/softhca-hot-path-" + std::to_string(getpid())) {
        setenv("SOFTHCA_WIRE", wire_.c_str(), 1);
        setenv("SOFTHCA",
               "name=a mac=02:00:00:00:00:0a ifindex=900001 kind=mlx5 engine=kick;"
               "name=b mac=02:00:00:00:00:0b ifindex=900002 kind=mlx5 engine=kick",
               1);
        for (int i : {0, 1}) {
            VerbsRingConfig config;
            config.ifindex = 900001 + i;
            config.mac = {2, 0, 0, 0, 0, uint8_t(0x0a + i)};
            config.mlx5 = true;
            config.kick = work;
            config.arena = host_[i].arena;
            config.pool = host_[i].pool;
            std::string why;
            const auto opened = open_verbs_ring(config, &why);
            check(opened.ok(), why.c_str());
            ring_[i].reset(*opened);
        }
    }
    ~Card() {
        for (auto& ring : ring_) ring.reset();
        std::filesystem::remove_all(wire_);
    }
    Card(const Card&) = delete;
    Card& operator=(const Card&) = delete;

    void frames(std::string_view counted, long times) {
        test::FrameSpec spec;
        spec.from = {2, 0, 0, 0, 0, 0x0a};
        spec.to = {2, 0, 0, 0, 0, 0x0b};
        spec.src = {IpAddr::v4(10, 9, 9, 1), 7000};
        spec.dst = {IpAddr::v4(10, 9, 9, 2), 7001};
        spec.payload = kText;
        test::Frame frame = test::build_frame(spec);
        const TxFrame sent[] = {frame.plain()};
        check(ring_[1]->steer({spec.dst, {}, IPPROTO_UDP}).ok(), "no flow");
        const bool send = counted == "mlx5_send", receive = counted == "mlx5_receive";
        for (long i = 0; i < times; i++) {
            int why = 0;
            counting_ = send;
            {
                const Counted here(send);
                check(ring_[0]->send(sent, &why) == 1, "not sent");
            }
            counting_ = receive;
            {
                const Counted here(receive);
                Packet packet[1];
                check(ring_[1]->recv(packet) == 1, "nothing came");
            }
            counting_ = false;
        }
    }

  private:
    static unsigned work(ibv_context* context) {
        const Counted off(counting_);
        return VerbsLibrary::get()->kick(context);
    }
    static inline bool counting_ = false;

    std::string wire_;
    Host host_[2];
    std::unique_ptr<Ring> ring_[2];
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const std::string_view step = argv[1];
    const long times = std::atol(argv[2]);
    if (step.starts_with("mlx5_")) {
        Card().frames(step, times);
        return 0;
    }
    Stage stage;
    if (step.starts_with("udp_"))
        stage.udp(step, times);
    else if (step == "tcp_accept")
        stage.accepts(times);
    else
        stage.tcp(step, times);
}
