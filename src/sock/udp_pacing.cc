// SO_MAX_PACING_RATE of a UDP socket: what may not leave yet waits in the shard (engine/udp_pacing.h), as much of it as SO_SNDBUF
// allows; then the call waits, or says EAGAIN.
#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "sock/option_rows.h"
#include "sock/udp_socket.h"

namespace vma::sock {

Duration UdpSocket::send_timeout(int fd) {
    timeval tv{};
    socklen_t len = sizeof tv;
    if (sys::getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, &len) < 0) return {};
    return {int64_t(tv.tv_sec) * 1000000000 + int64_t(tv.tv_usec) * 1000};
}

// Room for a datagram more in one shard.
class UdpRoom final : public WaitTarget {
  public:
    UdpRoom(UdpSocket& socket, Shard& shard) : socket_(socket), shard_(&shard) {}
    bool ready(bool) override { return socket_.has_room(*shard_); }
    void watch(Sleeper& sleeper) override { socket_.watch.add(sleeper); }
    void unwatch(Sleeper& sleeper) override { socket_.watch.remove(sleeper); }
    std::span<Shard* const> shards() override { return {&shard_, 1}; }

  private:
    UdpSocket& socket_;
    Shard* shard_;
};

// Who waits for room lets leave what is due, so that a blocking sender keeps its rate itself.
bool UdpSocket::has_room(Shard& shard) {
    if (state() != SocketState::offloaded || handed_back_.load(std::memory_order_acquire))
        return true;
    LeaseGuard guard(shard.lease());
    const Presence* const presence = presence_in(shard, false);
    const PacedFlow* const flow = presence ? paced_of(*presence).load() : nullptr;
    if (flow == nullptr) return true;
    shard.pacing().run(monotonic_now());
    return flow->has_room();
}

bool UdpSocket::told_no_room(int flags, size_t length, Outcome* answer) {
    if (!nonblocking() && !(flags & MSG_DONTWAIT)) return false;
    const Options& options = Runtime::options();
    const bool drops = options.is_set(Opt::tx_nonblocked_eagains) && !options.tx_nonblocked_eagains;
    SocketCounters::add(drops ? counters.tx_errors : counters.tx_eagain, 1);
    *answer = drops ? Outcome::value(long(length)) : Outcome::error(EAGAIN);
    return true;
}

bool UdpSocket::wait_for_room(int fd, Shard& shard, size_t length, int flags, Outcome* refused) {
    if (has_room(shard)) return true;
    if (told_no_room(flags, length, refused)) return false;
    *refused = Outcome::error(EAGAIN);
    const Duration timeout = send_timeout(fd);
    const Instant deadline = timeout.ns ? monotonic_now() + timeout : Instant::never();
    UdpRoom room(*this, shard);
    SpinGovernor governor;
    for (;;) {
        WaitLimits limits;
        limits.spin = {};
        limits.deadline = std::min(deadline, shard.pacing_deadline());
        switch (wait_until(room, governor, limits)) {
            case WaitEnd::ready:
                return true;
            case WaitEnd::interrupted:
                *refused = interrupted_call(timeout);
                return false;
            case WaitEnd::timeout:
                if (has_room(shard)) return true;
                if (monotonic_now() >= deadline) return false;
        }
    }
}

// After SO_MAX_PACING_RATE or SO_SNDBUF: what the twin has is what counts.
void UdpSocket::follow_pacing(int fd) {
    std::lock_guard guard(control_);
    uint64_t rate = 0;
    socklen_t len = sizeof rate;
    if (sys::getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &len) < 0 || rate == UINT64_MAX)
        rate = 0;
    const auto limit = uint32_t(int_option(fd, SOL_SOCKET, SO_SNDBUF));
    send_buffer_.store(limit, std::memory_order_relaxed);
    pacing_rate_.store(rate, std::memory_order_relaxed);
    for (unsigned i = 0, n = presence_count_.load(std::memory_order_relaxed); i < n; i++) {
        Presence& p = presences_[i];
        LeaseGuard lease(p.shard->lease());
        if (PacedFlow* const flow = paced_of(p))
            p.shard->pacing().set(*flow, rate, limit, monotonic_now());
    }
}

PacedFlow* UdpSocket::paced_flow(Presence& presence) {
    if (PacedFlow* const there = paced_of(presence)) return there;
    UdpPacing& pacing = presence.shard->pacing();
    PacedFlow* const flow = pacing.open(*presence.endpoint);
    if (flow == nullptr) return nullptr;
    pacing.set(*flow, pacing_rate_.load(std::memory_order_relaxed),
               send_buffer_.load(std::memory_order_relaxed), monotonic_now());
    paced_of(presence) = flow;
    return flow;
}

int UdpSocket::send_frame(Leaving& leaving, const TxFrame& frame) {
    const TxStampRequest stamps = std::exchange(leaving.stamps, {});
    return leaving.flow ? leaving.shard.pacing().send(*leaving.flow, frame, monotonic_now(), stamps)
                        : leaving.shard.send_stamped(frame, leaving.endpoint, stamps);
}

// Under the lease of to.shard. The datagrams of one call in super-frames that are no burst, each of them in its time.
int UdpSocket::send_apart(const Destination& to, std::span<const iovec> payload, uint32_t length,
                          uint16_t segment, uint16_t id, Leaving& leaving) {
    PayloadCursor rest(payload);
    uint8_t head[kUdpMaxHead];
    iovec pieces[kMostPieces];
    const uint32_t train = leaving.flow->train(uint32_t(to.head.bytes().size()) + segment);
    const uint32_t step = std::min<uint32_t>(train, kMostSegments) * segment;
    for (uint32_t at = 0; at < length; at += step) {
        const uint32_t size = std::min(step, length - at);
        const auto taken = rest.take(size, pieces);
        if (!taken) return taken.error();
        const std::span<const iovec> part{pieces, *taken};
        const auto built = emit_udp_datagram(to.head, UdpChecksum::offload, part, size, id, head);
        id = uint16_t(id + (size + segment - 1) / segment);
        if (!built) return built.error();
        TxFrame frame;
        frame.head = {head, built->size};
        frame.payload = pieces;
        frame.payload_count = uint16_t(*taken);
        frame.payload_len = size;
        frame.csum_start = built->csum_start;
        frame.csum_offset = built->csum_offset;
        if (size > segment) {
            frame.gso = Gso::udp_l4;
            frame.gso_size = segment;
        }
        // After the first the rest is lost, as with a full queue of the kernel's: by the twin all would go once more.
        if (const int error = send_frame(leaving, frame)) return at == 0 ? error : 0;
    }
    return 0;
}

bool UdpSocket::is_writable() const {
    if (pacing_rate_.load(std::memory_order_relaxed) == 0) return true;
    return std::all_of(paced_.begin(), paced_.end(), [](const std::atomic<PacedFlow*>& paced) {
        const PacedFlow* const flow = paced.load(std::memory_order_acquire);
        return flow == nullptr || flow->is_writable();
    });
}

Outcome UdpSocket::unsent(int fd) {
    uint64_t here = 0;
    for (const auto& paced : paced_)
        if (const PacedFlow* const flow = paced.load(std::memory_order_acquire))
            here += flow->charged();
    int in_twin = 0;
    if (here == 0 || sys::ioctl(fd, SIOCOUTQ, &in_twin) < 0) return Outcome::kernel();
    return Outcome::value(long(here) + in_twin);
}

// The kernel goes on: what waits leaves before what it sends.
void UdpSocket::flush_paced() {
    for (unsigned i = 0, n = presence_count_.load(std::memory_order_relaxed); i < n; i++) {
        Presence& p = presences_[i];
        LeaseGuard lease(p.shard->lease());
        if (PacedFlow* const flow = paced_of(p)) p.shard->pacing().flush(*flow, monotonic_now());
    }
}

}  // namespace vma::sock
