#include "support/virtual_wire.h"

#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "support/frames.h"

namespace vma::test {

class VirtualWire::End final : public Ring {
  public:
    struct Arrived {
        std::vector<uint8_t> bytes;
        uint16_t gso_size;
        bool good;
    };

    End(VirtualWire& wire, int index, PacketPool& pool)
        : wire_(wire), index_(index), pool_(pool), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        caps_.mtu = wire.config_.mtu;
        caps_.max_gso_bytes = wire.config_.max_gso_bytes;
        caps_.max_gso_segments = 128;
        caps_.tx_checksum = caps_.rx_checksum = caps_.udp_gso = true;
    }
    ~End() override { close(wake_); }

    const RingCaps& caps() const override { return caps_; }

    unsigned recv(std::span<Packet> out) override {
        std::lock_guard hold(wire_.mutex_);
        unsigned n = 0;
        while (n < out.size() && !arrived_.empty()) {
            Arrived& a = arrived_.front();
            Packet p = pool_.take(a.bytes.size());
            if (!p) break;
            std::memcpy(p->data, a.bytes.data(), a.bytes.size());
            p->len = uint32_t(a.bytes.size());
            p->meta.gso_size = a.gso_size;
            p->meta.checksum_good = a.good;
            p->meta.ifindex = uint32_t(index_ + 1);
            counters_.rx_frames++;
            counters_.rx_bytes += a.bytes.size();
            out[n++] = std::move(p);
            arrived_.pop_front();
        }
        return n;
    }

    RingBacklog backlog() const override {
        std::lock_guard hold(wire_.mutex_);
        return {counters_.rx_frames, counters_.rx_frames + arrived_.size()};
    }

    unsigned send(std::span<const TxFrame> frames, int* why) override {
        std::lock_guard hold(wire_.mutex_);
        unsigned n = 0;
        for (const TxFrame& f : frames) {
            const uint64_t l3 = f.head.size() + f.payload_len - 14;
            const uint32_t most = f.gso == Gso::none ? caps_.mtu : caps_.max_gso_bytes;
            if (f.head.size() < 14 || l3 > most) {
                counters_.tx_refused++;
                if (why) *why = f.head.size() < 14 ? EINVAL : EMSGSIZE;
                break;
            }
            counters_.tx_frames++;
            counters_.tx_bytes += f.head.size() + f.payload_len;
            wire_.transmit(index_, f);
            ++n;
        }
        return n;
    }

    Status steer(const FlowKey& key, int) override {
        std::lock_guard hold(wire_.mutex_);
        if ((key.protocol != IPPROTO_TCP && key.protocol != IPPROTO_UDP) || key.local.port == 0 ||
            key.local.addr.is_any() || key.local.addr.is_multicast())
            return Errno{EINVAL};
        if (!flows_.insert(normal(key)).second) return Errno{EEXIST};
        return {};
    }
    void unsteer(const FlowKey& key) override {
        std::lock_guard hold(wire_.mutex_);
        flows_.erase(normal(key));
    }

    int wake_fd() const override { return wake_; }
    bool arm() override {
        std::lock_guard hold(wire_.mutex_);
        silence();
        armed_ = arrived_.empty();
        return armed_;
    }
    void disarm() override {
        std::lock_guard hold(wire_.mutex_);
        armed_ = false;
        silence();
    }
    RingCounters counters() const override {
        std::lock_guard hold(wire_.mutex_);
        return counters_;
    }

    // The wire's side; locked. False: not steered here.
    bool matches(const std::vector<uint8_t>& b) const {
        if (b.size() < 34 || load_be16(&b[12]) != 0x0800 || b[14] >> 4 != 4) return false;
        const size_t ip_bytes = (b[14] & 15) * 4u, l4 = 14 + ip_bytes;
        if (ip_bytes < 20 || b.size() < l4 + 4 || (load_be16(&b[20]) & 0x3fff) != 0) return false;
        FlowKey k;
        k.protocol = b[23];
        k.local = {IpAddr::v4_bytes(&b[30]), load_be16(&b[l4 + 2])};
        k.remote = {IpAddr::v4_bytes(&b[26]), load_be16(&b[l4])};
        if (flows_.count(k)) return true;
        k.remote = {};
        return flows_.count(k) != 0;
    }
    void arrive(Arrived a) {
        if (arrived_.size() >= wire_.config_.queue_frames) {
            counters_.drops.add(DropReason::ring_full);
            return;
        }
        arrived_.push_back(std::move(a));
        if (!armed_) return;
        armed_ = false;
        counters_.wakeups++;
        const uint64_t one = 1;
        (void)!write(wake_, &one, sizeof(one));
    }

  private:
    static FlowKey normal(FlowKey k) {
        if (!k.connected()) k.remote = {};
        return k;
    }
    void silence() {
        uint64_t n;
        (void)!read(wake_, &n, sizeof(n));
    }

    VirtualWire& wire_;
    int index_;
    PacketPool& pool_;
    int wake_;
    bool armed_ = false;
    RingCaps caps_;
    RingCounters counters_;
    std::set<FlowKey> flows_;
    std::deque<Arrived> arrived_;
};

VirtualWire::VirtualWire(const WireConfig& config, PacketPool& pool0, PacketPool& pool1)
    : config_(config), rng_(config.seed) {
    ends_[0] = new End(*this, 0, pool0);
    ends_[1] = new End(*this, 1, pool1);
}

VirtualWire::~VirtualWire() {
    for (End* e : ends_) delete e;
}

Ring& VirtualWire::end(int i) { return *ends_[i]; }

Instant VirtualWire::now() const {
    std::lock_guard hold(mutex_);
    return now_;
}

Instant VirtualWire::next_event() const {
    std::lock_guard hold(mutex_);
    return flights_.empty() ? Instant::never() : flights_.begin()->first.first;
}

WireCounters VirtualWire::counters() const {
    std::lock_guard hold(mutex_);
    return counters_;
}

void VirtualWire::set(const WireConfig& config) {
    std::lock_guard hold(mutex_);
    config_ = config;
}

void VirtualWire::advance(Instant to) {
    std::lock_guard hold(mutex_);
    while (!flights_.empty() && flights_.begin()->first.first <= to) {
        auto first = flights_.begin();
        if (first->first.first > now_) now_ = first->first.first;
        Flight f = std::move(first->second);
        flights_.erase(first);
        deliver(f);
    }
    if (!to.is_never() && to > now_) now_ = to;
}

void VirtualWire::transmit(int from, const TxFrame& frame) {
    Flight f{1 - from, {}, frame.gso == Gso::none ? uint16_t(0) : frame.gso_size, config_.vouch};
    f.bytes.assign(frame.head.begin(), frame.head.end());
    for (unsigned i = 0; i < frame.payload_count; ++i) {
        const auto* p = static_cast<const uint8_t*>(frame.payload[i].iov_base);
        f.bytes.insert(f.bytes.end(), p, p + frame.payload[i].iov_len);
    }
    // A device finishes the sum; a super-frame travels unfinished, as between virtual interfaces.
    if (frame.csum_start && frame.gso == Gso::none &&
        frame.csum_start + frame.csum_offset + 2u <= f.bytes.size()) {
        uint8_t* l4 = f.bytes.data() + frame.csum_start;
        const uint16_t sum = uint16_t(~add_words(l4, f.bytes.size() - frame.csum_start, 0));
        store_be16(l4 + frame.csum_offset, sum ? sum : 0xffff);
    }
    counters_.sent++;
    auto hit = [&](Chance c) { return c.of && rng_.chance(c.of, c.in); };
    if (hit(config_.lose)) {
        counters_.lost++;
        return;
    }
    Duration delay = config_.latency;
    if (config_.jitter.ns > 0)
        delay = delay + Duration{int64_t(rng_.next() % uint64_t(config_.jitter.ns))};
    if (hit(config_.corrupt) && f.bytes.size() > 14) {
        f.bytes[14 + rng_.below(uint32_t(f.bytes.size() - 14))] ^= uint8_t(1u << rng_.below(8));
        f.good = false;
        counters_.corrupted++;
    }
    if (hit(config_.reorder)) {
        delay = delay + config_.reorder_delay;
        counters_.reordered++;
    }
    if (hit(config_.duplicate)) {
        counters_.duplicated++;
        schedule(f, delay);
    }
    schedule(std::move(f), delay);
}

void VirtualWire::schedule(Flight flight, Duration delay) {
    if (delay.ns == 0) {
        deliver(flight);
        return;
    }
    flights_.emplace(std::make_pair(now_ + delay, order_++), std::move(flight));
}

void VirtualWire::deliver(Flight& flight) {
    End& to = *ends_[flight.to];
    if (!to.matches(flight.bytes)) {
        counters_.to_kernel++;
        return;
    }
    counters_.delivered++;
    to.arrive({std::move(flight.bytes), flight.gso_size, flight.good});
}

}  // namespace vma::test
