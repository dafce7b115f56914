#include "dev/shm/direction.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace vma::shm {
namespace {

// What of a frame lies on the line of its word.
constexpr uint32_t kFirstLine = kRecordAlign - kWordBytes;

// Bytes [from, to) of head and payload. False: the payload is shorter than that.
bool copy_part(const TxFrame& f, uint32_t from, uint32_t to, uint8_t* out) {
    uint32_t begin = 0;  // of the piece, in the frame
    auto piece = [&](const void* data, size_t bytes) {
        const uint64_t end = begin + uint64_t(bytes);
        if (end > from) {
            const uint32_t skip = from - begin, last = end < to ? uint32_t(end) : to;
            std::memcpy(out, static_cast<const uint8_t*>(data) + skip, last - from);
            out += last - from;
            from = last;
        }
        begin = end < to ? uint32_t(end) : to;
    };
    piece(f.head.data(), f.head.size());
    for (unsigned i = 0; i < f.payload_count && from < to; ++i)
        piece(f.payload[i].iov_base, f.payload[i].iov_len);
    return from >= to;
}

void copy(uint8_t* to, const uint8_t* from, uint32_t n) {
    if (n > 0) std::memcpy(to, from, n);
}

// The whole frame, what lies on the line of the word last and in one go: a consumer that spins on that line would take it away
// in between. False: the payload is shorter than payload_len.
bool copy_frame(const TxFrame& f, uint32_t length, uint8_t* out) {
    const uint32_t first = length < kFirstLine ? length : kFirstLine;
    const size_t payload_bytes = f.payload_count ? f.payload[0].iov_len : 0;
    if (f.payload_count > 1 || payload_bytes < f.payload_len)
        return copy_part(f, first, length, out + first) && copy_part(f, 0, first, out);
    const uint8_t* const head = f.head.data();
    const auto* const payload =
        f.payload_count ? static_cast<const uint8_t*>(f.payload[0].iov_base) : nullptr;
    const uint32_t head_bytes = length - f.payload_len;
    if (head_bytes > first) {
        copy(out + first, head + first, head_bytes - first);
        copy(out + head_bytes, payload, f.payload_len);
        copy(out, head, first);
    } else {
        const uint32_t split = first - head_bytes;
        copy(out + first, payload + split, length - first);
        copy(out, head, head_bytes);
        copy(out + head_bytes, payload, split);
    }
    return true;
}

}  // namespace

void Outbound::open(uint8_t* records, ConsumerWords& words, uint32_t ring_bytes) {
    records_ = records;
    words_ = &words;
    ring_bytes_ = ring_bytes;
}

int Outbound::push_record(const TxFrame& f, uint8_t flags) {
    if (fault_ != Fault::none) return ENETDOWN;
    const uint32_t length = uint32_t(f.head.size()) + f.payload_len, span = record_span(length);
    if (span > room() && (!look_for_room() || span > room()))
        return fault_ == Fault::none ? EAGAIN : ENETDOWN;
    const uint64_t mask = ring_bytes_ - 1;
    uint8_t* const at = records_ + (produced_ & mask);
    if (!copy_frame(f, length, at + kWordBytes)) return EINVAL;
    const Record record{length, f.gso == Gso::none ? uint16_t(0) : f.gso_size, flags};
    const uint64_t next = produced_ + span;
    __atomic_store_n(reinterpret_cast<uint64_t*>(records_ + (next & mask)), uint64_t(0),
                     __ATOMIC_RELAXED);
    __atomic_store_n(reinterpret_cast<uint64_t*>(at), word_of(record), __ATOMIC_RELEASE);
    produced_ = next;
    return 0;
}

bool Outbound::copy_text(uint32_t tag, Seq from, Seq until, std::vector<uint8_t>& out) const {
    for (uint64_t at = consumed_; at != produced_ && from < until;) {
        const uint8_t* const place = records_ + (at & (ring_bytes_ - 1));
        Record record;
        if (!parse_word(__atomic_load_n(reinterpret_cast<const uint64_t*>(place), __ATOMIC_RELAXED),
                        record))
            return false;
        at += record_span(record.length);
        if (at > produced_) return false;
        if (!(record.flags & kText)) continue;
        TextHead head;
        std::memcpy(&head, place + kWordBytes, sizeof head);
        const uint32_t bytes = record.length - uint32_t(sizeof head);
        const Seq seq = head.seq;
        if (head.name() != tag || seq + bytes <= from || seq >= until) continue;
        if (from < seq) return false;  // a hole
        const uint32_t skip = uint32_t(from - seq),
                       n = std::min(bytes - skip, uint32_t(until - from));
        const uint8_t* const text = place + kWordBytes + sizeof head + skip;
        out.insert(out.end(), text, text + n);
        from += n;
    }
    return !(from < until);
}

bool Outbound::look_for_room() {
    const uint64_t consumed = __atomic_load_n(&words_->consumed, __ATOMIC_ACQUIRE);
    if (consumed < consumed_)
        fault_ = Fault::consumed_back;
    else if (consumed > produced_)
        fault_ = Fault::consumed_beyond;
    else if (consumed % kRecordAlign != 0)
        fault_ = Fault::consumed_ragged;
    else
        consumed_ = consumed;
    return fault_ == Fault::none;
}

bool Outbound::must_ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const uint32_t sleeping = __atomic_load_n(&words_->sleeping, __ATOMIC_RELAXED);
    if (sleeping == 0 || sleeping == rung_) return false;
    rung_ = sleeping;
    return true;
}

void Inbound::open(const uint8_t* records, ConsumerWords& words, uint32_t ring_bytes) {
    records_ = records;
    words_ = &words;
    mask_ = ring_bytes - 1;
}

uint32_t Inbound::next_text() const {
    Record record;
    if (!parse_word(load(), record) || !(record.flags & kText)) return 0;
    TextHead head;
    std::memcpy(&head, records_ + (at_ & mask_) + kWordBytes, sizeof head);
    return head.name();
}

Inbound::Took Inbound::take(PacketPool& pool, Packet& out) {
    if (fault_ != Fault::none) return Took::fault;
    const uint64_t word = load();
    if (word == 0) return Took::nothing;
    Record record;
    if (!parse_word(word, record)) {
        fault_ = Fault::record_word;
        return Took::fault;
    }
    const uint8_t* const frame = records_ + (at_ & mask_) + kWordBytes;
    const uint64_t next = at_ + record_span(record.length);
    __builtin_prefetch(records_ + (next & mask_));
    Packet p = pool.take(record.length);
    if (!p) return Took::no_memory;
    // Nothing of the frame is looked at before it is ours alone.
    std::memcpy(p->data, frame, record.length);
    p->len = record.length;
    p->meta.gso_size = record.gso_size;
    p->meta.checksum_good = (record.flags & kChecksumVouched) != 0;
    p->meta.flow_tag = record.flags & kText;
    at_ = next;
    // Each store of the position costs the producer's core a miss when it looks for room, so not after every frame.
    if (at_ - published_ > mask_ / 8) publish();
    out = std::move(p);
    return Took::frame;
}

uint32_t Inbound::waiting() const {
    uint32_t records = 0;
    Record record;
    for (uint64_t at = at_; fault_ == Fault::none && at - at_ <= mask_; ++records) {
        const auto* const place = reinterpret_cast<const uint64_t*>(records_ + (at & mask_));
        if (!parse_word(__atomic_load_n(place, __ATOMIC_ACQUIRE), record)) break;
        at += record_span(record.length);
    }
    return records;
}

void Inbound::publish() {
    published_ = at_;
    __atomic_store_n(&words_->consumed, at_, __ATOMIC_RELEASE);
}

void Inbound::fall_asleep() {
    if (fault_ != Fault::none) return;
    if (published_ != at_) publish();
    if (++sleeps_ == 0) sleeps_ = 1;
    __atomic_store_n(&words_->sleeping, sleeps_, __ATOMIC_RELAXED);
}

void Inbound::wake() { __atomic_store_n(&words_->sleeping, 0u, __ATOMIC_RELAXED); }

}  // namespace vma::shm
