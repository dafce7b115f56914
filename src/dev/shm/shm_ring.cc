#include "dev/shm/shm_ring.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/sys.h"

namespace vma::shm {
namespace {

bool is_unicast_v4(const Endpoint& e) {
    return e.addr.is_v4() && e.port != 0 && !e.addr.is_any() && !e.addr.is_multicast() &&
           !e.addr.is_limited_broadcast();
}

bool known_protocol(const FlowKey& key) {
    return key.protocol == IPPROTO_TCP || key.protocol == IPPROTO_UDP;
}

PackedFlow pack(const FlowKey& key) {
    return PackedFlow::of(key.protocol, key.local.addr.v4_host(), key.local.port,
                          key.remote.addr.v4_host(), key.remote.port);
}

// Of steer(): the local end, and the remote one when there is one.
bool pack_steered(const FlowKey& key, PackedFlow& out) {
    if (!known_protocol(key) || !is_unicast_v4(key.local)) return false;
    if (key.connected() && !is_unicast_v4(key.remote)) return false;
    out = key.connected() ? pack(key) : pack(key).any_remote();
    return true;
}

// Of route(): the remote end, and the local one when there is one.
bool pack_route(const FlowKey& key, PackedFlow& out) {
    if (!known_protocol(key) || !is_unicast_v4(key.remote)) return false;
    if (key.local.port != 0 && !is_unicast_v4(key.local)) return false;
    out = key.local.port != 0 ? pack(key) : pack(key).any_local();
    return true;
}

// Exact, then with one end open.
const uint32_t* route_of(const FlowTable& routes, const PackedFlow& flow) {
    const uint32_t* const exact = routes.find(flow);
    return exact ? exact : routes.find(flow.any_local());
}

}  // namespace

// ---- life

ShmRing::ShmRing(const ShmRingConfig& config) : config_(config), pid_(sys::getpid()) {
    caps_.mtu = kMostPacketBytes;
    // As large as a plain frame: a core whose segments are smaller sends super-frames, and nobody cuts them.
    caps_.max_gso_bytes = kMostPacketBytes;
    caps_.max_gso_segments = UINT16_MAX;
    caps_.tx_checksum = caps_.rx_checksum = caps_.udp_gso = caps_.pushes_back = true;
    caps_.has_neighbors = false;
    steered_.set_secret(config.secret, config.secret2);
    routes_.set_secret(config.secret2, config.secret);
}

Result<ShmRing*> ShmRing::open(const ShmRingConfig& config) {
    std::unique_ptr<ShmRing> ring(new (std::nothrow) ShmRing(config));
    if (!ring) return Errno{ENOMEM};
    ring->places_.reset(new (std::nothrow) Place[kMostPairs]);
    ring->order_.reset(new (std::nothrow) uint16_t[kMostPairs]);
    if (!ring->places_ || !ring->order_) return Errno{ENOMEM};
    const int set = sys::epoll_create1(EPOLL_CLOEXEC);
    if (set < 0) return Errno{-set};
    if (Status s = ring->sleep_set_.adopt(set); !s) return Errno{s.error()};
    return ring.release();
}

ShmRing::~ShmRing() {
    if (sys::getpid() == pid_) return;
    // A forked child: the memory is not here.
    for (unsigned i = 0; i < kMostPairs; ++i)
        if (places_[i].pair) places_[i].pair->forget();
}

// ---- pairs

ShmRing::Place* ShmRing::place_of(PairId id) const {
    const uint64_t number = id & 0xffffffff;
    if (number >= kMostPairs) return nullptr;
    Place& place = places_[number];
    return place.pair && place.generation == id >> 32 ? &place : nullptr;
}

Result<PairId> ShmRing::add_pair(PairParts parts, std::string* why) {
    uint16_t number = 0;
    while (number < kMostPairs && places_[number].pair) ++number;
    std::unique_ptr<Pair> pair;
    int error = number == kMostPairs ? ENOSPC : 0;
    if (error == 0) {
        pair.reset(new (std::nothrow) Pair);
        if (!pair) error = ENOMEM;
    }
    if (error != 0) {
        parts.close_all();
        if (why)
            *why = error == ENOSPC ? "the ring has all the pairs it can have"
                                   : "no memory for the pair";
        return Errno{error};
    }
    if (Status s = pair->open(parts, why); !s) return Errno{s.error()};
    Place& place = places_[number];
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    const int added = sys::epoll_ctl(sleep_set_.fd(), EPOLL_CTL_ADD, pair->bell(), &event);
    if (added < 0) {
        if (why) *why = "the bell cannot be waited for";
        return Errno{-added};
    }
    place.pair = std::move(pair);
    if (++place.generation == 0) place.generation = 1;
    place.quiet = 0;
    place.order = uint16_t(listed_);
    order_[listed_++] = number;
    heat(number);
    return id_of(place);
}

void ShmRing::remove_pair(PairId id) {
    Place* const place = place_of(id);
    if (place == nullptr) return;
    const auto number = uint16_t(place - places_.get());
    if (place->order < listed_ && order_[place->order] == number) unlist(number);
    routes_.erase_all(number);
    deafen(*place->pair);
    place->pair.reset();
}

void ShmRing::broke(Place& place) {
    broken_pairs_.add(1);
    unlist(uint16_t(&place - places_.get()));
    deafen(*place.pair);
}

// The neighbour has the open file too: closing ours would not take it out of the sleep set. (Where the program took the number
// of our descriptor, the bell is in the set under that and stays: he can wake us, for nothing.)
void ShmRing::deafen(const Pair& pair) {
    sys::epoll_ctl(sleep_set_.fd(), EPOLL_CTL_DEL, pair.bell(), nullptr);
}

void ShmRing::neighbor_gone(PairId id) {
    if (Place* const place = place_of(id)) place->pair->neighbor_gone();
}

PairState ShmRing::pair_state(PairId id) const {
    const Place* const place = place_of(id);
    return place ? place->pair->state() : PairState::broken;
}

Fault ShmRing::pair_fault(PairId id) const {
    const Place* const place = place_of(id);
    return place ? place->pair->fault() : Fault::none;
}

Status ShmRing::route(const FlowKey& key, PairId pair) {
    PackedFlow flow;
    if (!pack_route(key, flow)) return Errno{EINVAL};
    const Place* const place = place_of(pair);
    if (place == nullptr) return Errno{ENOENT};
    return routes_.insert(flow, uint32_t(place - places_.get()));
}

void ShmRing::unroute(const FlowKey& key) {
    PackedFlow flow;
    if (pack_route(key, flow)) routes_.erase(flow);
}

bool ShmRing::routed_to(const FlowKey& key, PairId pair) const {
    const Place* const place = place_of(pair);
    const uint32_t* const number = place ? route_of(routes_, pack(key)) : nullptr;
    return number != nullptr && *number == uint32_t(place - places_.get());
}

bool ShmRing::has_room(const FlowKey& key) const {
    const uint32_t* const number = route_of(routes_, pack(key));
    return number == nullptr || places_[*number].pair->has_room();
}

// ---- the list of pairs

void ShmRing::move(uint16_t number, unsigned to) {
    const unsigned from = places_[number].order;
    const uint16_t other = order_[to];
    order_[from] = other;
    places_[other].order = uint16_t(from);
    order_[to] = number;
    places_[number].order = uint16_t(to);
}

void ShmRing::heat(uint16_t number) {
    places_[number].quiet = 0;
    move(number, hot_++);
}

void ShmRing::cool(uint16_t number) { move(number, --hot_); }

void ShmRing::unlist(uint16_t number) {
    if (places_[number].order < hot_) cool(number);
    move(number, --listed_);
}

// ---- in

// Is this packet one that the pair may bring, and ours to have?
bool ShmRing::admitted(const Packet& packet, const Place& place) {
    PackedFlow flow;
    if (!flow_of_frame(packet->view(), packet->len - kLeastFrameBytes, Toward::us, flow)) {
        not_a_flow_.add(1);
        return false;
    }
    const uint32_t* const speaker = route_of(routes_, flow);
    if (speaker == nullptr || *speaker != uint32_t(&place - places_.get())) {
        foreign_source_.add(1);
        return false;
    }
    if (!steered_.find(flow) && !steered_.find(flow.any_remote())) {
        not_steered_.add(1);
        return false;
    }
    return true;
}

bool ShmRing::admitted_text(Packet& packet, const Place& place) {
    TextHead head;
    std::memcpy(&head, packet->data, sizeof head);
    const Text* const text = text_of(head.name());
    if (text == nullptr || text->from != id_of(place)) {
        not_steered_.add(1);
        return false;
    }
    packet->meta.flow_tag = head.name();
    return true;
}

bool ShmRing::next_is_held(const Place& place) const {
    const Text* const text = text_of(place.pair->next_text());
    return text && text->held && text->from == id_of(place);
}

unsigned ShmRing::take_from(Place& place, std::span<Packet> out, bool* no_memory) {
    unsigned n = 0, looks = 0;
    // Dropped frames count as looks, so that a neighbour who sends only those gets no more than his turn.
    while (n < out.size() && looks++ < kTurn) {
        if (held_texts_ > 0 && next_is_held(place)) [[unlikely]]
            return n;
        Packet packet;
        switch (place.pair->take(*config_.pool, packet)) {
            case Inbound::Took::nothing:
                return n;
            case Inbound::Took::no_memory:
                *no_memory = true;
                place.quiet = 0;
                return n;
            case Inbound::Took::fault:
                broke(place);
                return n;
            case Inbound::Took::frame:
                break;
        }
        place.quiet = 0;
        ++taken_;
        if (packet->meta.flow_tag ? !admitted_text(packet, place) : !admitted(packet, place))
            continue;
        packet->meta.ifindex = config_.ifindex;
        rx_frames_.add(1);
        rx_bytes_.add(packet->len);
        out[n++] = std::move(packet);
    }
    return n;
}

// Pairs that were quiet for long have one look each in turn, so that many of them cost little.
void ShmRing::look_at_cold() {
    const unsigned cold = listed_ - hot_;
    for (unsigned i = 0; i < std::min(cold, kColdLooks) && hot_ < listed_; ++i) {
        const uint16_t number = order_[hot_ + cold_turn_++ % (listed_ - hot_)];
        if (places_[number].pair->pending()) heat(number);
    }
}

unsigned ShmRing::recv(std::span<Packet> out) {
    if (hot_ < listed_) look_at_cold();
    unsigned n = 0;
    bool no_memory = false;
    // Until every hot pair was found empty once, or had so many turns that the caller must get to do something else.
    unsigned turns = hot_ + unsigned(out.size());
    for (unsigned idle = 0; n < out.size() && idle < hot_ && turns-- > 0 && !no_memory;) {
        if (turn_ >= hot_) turn_ = 0;
        const uint16_t number = order_[turn_];
        Place& place = places_[number];
        ++place.quiet;
        const unsigned listed = listed_;
        n += take_from(place, out.subspan(n), &no_memory);
        if (listed_ != listed) continue;  // it broke; another is in its place
        if (place.quiet >= kCoolAfter) {
            cool(number);
            continue;
        }
        idle = place.quiet == 0 ? 0 : idle + 1;
        ++turn_;
    }
    return n;
}

RingBacklog ShmRing::backlog() const {
    uint64_t longest = 0;
    for (unsigned i = 0; i < listed_; ++i)
        longest = std::max<uint64_t>(longest, places_[order_[i]].pair->waiting());
    if (listed_ <= 1 || longest == 0) return {taken_, taken_ + longest};
    // Cold pairs have their look after so many calls of recv(), each of which may have brought as much as it could.
    const uint64_t calls = hot_ < listed_ ? (listed_ - hot_) / kColdLooks + 1 : 0;
    const uint64_t turns = longest / kTurn + 1 + calls * kTurn;
    return {taken_, taken_ + turns * kTurn * listed_};
}

// ---- out

int ShmRing::send_one(const TxFrame& frame, Pair*& to) {
    if (frame.head.size() < kLeastFrameBytes) return EINVAL;
    const uint64_t l3 = frame.head.size() - kLeastFrameBytes + uint64_t(frame.payload_len);
    if (l3 > kMostPacketBytes) return EMSGSIZE;
    PackedFlow flow;
    if (!flow_of_frame(frame.head, uint32_t(l3), Toward::them, flow)) return EINVAL;
    const uint32_t* const place = route_of(routes_, flow);
    if (place == nullptr) return EHOSTUNREACH;
    Pair* const pair = places_[*place].pair.get();
    if (pair != to) {
        call(to);
        to = pair;
    }
    const PairState before = pair->state();
    const int error = pair->push(frame);
    if (error == EAGAIN) pushed_back_.add(1);
    if (pair->state() != before) broke(places_[*place]);
    return error;
}

unsigned ShmRing::send(std::span<const TxFrame> frames, int* why) {
    unsigned n = 0;
    Pair* to = nullptr;
    for (const TxFrame& f : frames) {
        if (const int error = send_one(f, to)) {
            tx_refused_.add(1);
            if (why) *why = error;
            break;
        }
        ++n;
        tx_frames_.add(1);
        tx_bytes_.add(f.head.size() + f.payload_len);
    }
    call(to);
    return n;
}

// ---- text

uint32_t ShmRing::open_text(const FlowKey& key, void* owner) {
    const uint64_t from = text_way(key);
    if (from == 0 || owner == nullptr) return 0;
    uint32_t tag;
    if (!free_texts_.empty()) {
        tag = free_texts_.back();
        free_texts_.pop_back();
    } else {
        if (texts_.size() >= kMostTexts) return 0;
        texts_.emplace_back();
        free_texts_.reserve(texts_.capacity());  // close_text() needs no memory
        tag = uint32_t(texts_.size());
    }
    texts_[tag - 1] = {from, owner, false};
    return tag;
}

void ShmRing::close_text(uint32_t tag) {
    Text* const text = text_of(tag);
    if (text == nullptr) return;
    hold_text(tag, false);
    *text = {};
    free_texts_.push_back(tag);
}

void ShmRing::hold_text(uint32_t tag, bool hold) {
    Text* const text = text_of(tag);
    if (text == nullptr || text->held == hold) return;
    text->held = hold;
    held_texts_ += hold ? 1 : -1;
}

bool ShmRing::has_text(uint32_t tag) const {
    const Text* const text = text_of(tag);
    const Place* const place = text ? place_of(text->from) : nullptr;
    return place && place->pair->next_text() == tag;
}

void* ShmRing::text_owner(uint32_t tag) const {
    const Text* const text = text_of(tag);
    return text ? text->owner : nullptr;
}

uint64_t ShmRing::text_way(const FlowKey& key) const {
    const uint32_t* const number = route_of(routes_, pack(key));
    return number ? id_of(places_[*number]) : 0;
}

int ShmRing::send_text(uint64_t way, TextHead head, const iovec* text, unsigned count,
                       uint32_t bytes) {
    Place* const place = place_of(way);
    if (place == nullptr) return ENETDOWN;
    TxFrame record;
    record.head = {reinterpret_cast<const uint8_t*>(&head), sizeof head};
    record.payload = text;
    record.payload_count = uint16_t(count);
    record.payload_len = bytes;
    const PairState before = place->pair->state();
    const int error = place->pair->push_text(record);
    if (error) [[unlikely]] {
        if (error == EAGAIN) pushed_back_.add(1);
        if (place->pair->state() != before) broke(*place);
        return error;
    }
    tx_frames_.add(1);
    tx_bytes_.add(sizeof head + bytes);
    call(place->pair.get());
    return 0;
}

bool ShmRing::unread_text(uint64_t way, uint32_t tag, Seq from, Seq until,
                          std::vector<uint8_t>& out) const {
    const Place* const place = place_of(way);
    return place && place->pair->copy_text(tag, from, until, out);
}

void ShmRing::call(Pair* pair) {
    if (pair && pair->state() == PairState::open && pair->call()) bells_rung_.add(1);
}

Status ShmRing::steer(const FlowKey& key, int) {
    PackedFlow flow;
    if (!pack_steered(key, flow)) return Errno{EINVAL};
    return steered_.insert(flow, 0);
}

void ShmRing::unsteer(const FlowKey& key) {
    PackedFlow flow;
    if (pack_steered(key, flow)) steered_.erase(flow);
    if (key.connected()) unroute(key);
}

// ---- sleep

// What has rung until now does not count for the next sleep.
void ShmRing::hush() {
    epoll_event events[64];
    for (unsigned round = 0; round < kMostPairs / 64; ++round) {
        const int n = sys::epoll_wait(sleep_set_.fd(), events, 64, 0);
        if (n > 0) wakeups_.add(unsigned(n));
        if (n < 64) return;
    }
}

bool ShmRing::arm() {
    hush();
    for (unsigned i = 0; i < listed_; ++i) places_[order_[i]].pair->fall_asleep();
    // Pairs with the fence in Outbound::must_ring: either the producer sees `sleeping`, or we see its record.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    bool quiet = true;
    for (unsigned i = 0; i < listed_ && quiet; ++i) quiet = !places_[order_[i]].pair->pending();
    if (!quiet) disarm();
    return quiet;
}

void ShmRing::disarm() {
    for (unsigned i = 0; i < listed_; ++i) places_[order_[i]].pair->wake();
}

// ---- figures

RingCounters ShmRing::counters() const {
    RingCounters c;
    c.rx_frames = rx_frames_.get();
    c.rx_bytes = rx_bytes_.get();
    c.tx_frames = tx_frames_.get();
    c.tx_bytes = tx_bytes_.get();
    c.drops.add(DropReason::shm_not_a_flow, not_a_flow_.get());
    c.drops.add(DropReason::shm_source, foreign_source_.get());
    c.drops.add(DropReason::shm_not_steered, not_steered_.get());
    c.tx_refused = tx_refused_.get();
    c.wakeups = wakeups_.get();
    return c;
}

ShmCounters ShmRing::shm_counters() const {
    ShmCounters c;
    c.not_a_flow = not_a_flow_.get();
    c.foreign_source = foreign_source_.get();
    c.not_steered = not_steered_.get();
    c.broken_pairs = broken_pairs_.get();
    c.bells_rung = bells_rung_.get();
    c.pushed_back = pushed_back_.get();
    return c;
}

}  // namespace vma::shm
