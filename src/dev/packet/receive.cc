#include "dev/packet/receive.h"

#include <linux/bpf.h>
#include <sys/mman.h>

#include <cstring>
#include <new>

#include "dev/packet/layout.h"

namespace vma {
namespace {

constexpr uint32_t kHeaderBytes = BPF_RINGBUF_HDR_SZ;
constexpr uint32_t kLengthMask = ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);

// Lender of packets whose bytes were moved out of the ring: the cookie is the pooled packet that carries them now.
class Carriers final : public PacketLender {
  public:
    void give_back(PacketBuf& buf) override {
        Packet(reinterpret_cast<PacketBuf*>(buf.lender_cookie)).reset();
    }
};
Carriers g_carriers;

}  // namespace

Status Receiver::open(int ring, uint32_t bytes, PacketPool& pool, bool drop) {
    constexpr size_t kPage = 4096;
    if (Status s = consumer_map_.map(ring, kPage, PROT_READ | PROT_WRITE, 0); !s) return s;
    if (Status s = producer_map_.map(ring, kPage + 2 * size_t(bytes), PROT_READ, kPage, true); !s)
        return s;
    loans_.reset(new (std::nothrow) Loan[kMostLoans]);
    if (!loans_) return Errno{ENOMEM};
    consumer_ = reinterpret_cast<uint64_t*>(consumer_map_.at());
    producer_ = reinterpret_cast<const uint64_t*>(producer_map_.at());
    data_ = producer_map_.at() + kPage;
    mask_ = bytes - 1;
    pool_ = &pool;
    drop_ = drop;
    return {};
}

void Receiver::forget() {
    consumer_map_.forget();
    producer_map_.forget();
}

// The next record that has a frame, and where it ends; null: there is none yet.
inline const uint8_t* Receiver::find_record(uint32_t* length, uint64_t* end) {
    for (;;) {
        if (at_ == produced_) {
            produced_ = __atomic_load_n(producer_, __ATOMIC_ACQUIRE);
            if (at_ == produced_) return nullptr;
        }
        const uint8_t* record = data_ + (at_ & mask_);
        const uint32_t word =
            __atomic_load_n(reinterpret_cast<const uint32_t*>(record), __ATOMIC_ACQUIRE);
        if (word & BPF_RINGBUF_BUSY_BIT) return nullptr;
        *length = word & kLengthMask;
        *end = at_ + ((uint64_t(*length) + kHeaderBytes + 7) & ~uint64_t(7));
        if (*end - at_ > mask_ + 1 ||
            *end > produced_) {  // cannot be: the kernel wrote it. Start over behind everything
            ++malformed_;
            pass(produced_);
            continue;
        }
        __builtin_prefetch(data_ + (*end & mask_));
        __builtin_prefetch(data_ + (*end & mask_) + 64);
        if (!(word & BPF_RINGBUF_DISCARD_BIT)) return record + kHeaderBytes;
        pass(*end);
    }
}

Receiver::Head Receiver::head() {
    uint32_t length = 0;
    uint64_t end = 0;
    const uint8_t* const record = find_record(&length, &end);
    if (record == nullptr) return {};
    vma_frame_meta meta{};
    if (length >= sizeof meta) std::memcpy(&meta, record, sizeof meta);
    return {true, meta.ordered != 0, meta.order};
}

unsigned Receiver::recv(std::span<Packet> out) {
    unsigned n = 0;
    if (at_ - freed_ > (mask_ + 1) / 2) move_old_loans();
    const uint64_t most = dropped_ + out.size();  // so that the caller is not kept here
    while (n < out.size() && dropped_ < most) {
        uint32_t length = 0;
        uint64_t end = 0;
        const uint8_t* const record = find_record(&length, &end);
        if (record == nullptr) break;
        bool wait = false;
        Packet p = take_record(record, length, end, &wait);
        if (wait) break;
        if (p) out[n++] = std::move(p);
    }
    return n;
}

// The packet of one record, which is passed. *wait: the pool is empty, the record stays for later.
Packet Receiver::take_record(const uint8_t* record, uint32_t record_bytes, uint64_t end,
                             bool* wait) {
    vma_frame_meta meta;
    std::memcpy(&meta, record, sizeof(meta));
    if (record_bytes < VMA_FRAME_OFFSET || meta.len > record_bytes - VMA_FRAME_OFFSET) {
        ++malformed_;
        pass(end);
        return {};
    }
    auto* frame = const_cast<uint8_t*>(record + VMA_FRAME_OFFSET);
    Packet p;
    if (loan_head_ - loan_tail_ < kMostLoans) {
        p = pool_->lend(frame, meta.len, this, loan_head_);
        if (p) loans_[loan_head_++ % kMostLoans] = {end, &*p};
    } else {  // more packets out than we keep account of: this one as a copy
        p = pool_->take(meta.len);
        if (p) {
            std::memcpy(p->data, frame, meta.len);
            p->len = meta.len;
        }
    }
    if (!p) {
        *wait = !drop_;
        if (drop_) {
            ++dropped_;
            pass(end);
        }
        return {};
    }
    if (p->lender)
        at_ = end;
    else
        pass(end);
    p->meta.ifindex = meta.ifindex;
    p->meta.gso_size = meta.gso_size;
    p->meta.vlan_tci = meta.vlan_tci;
    p->meta.has_vlan = meta.has_vlan != 0;
    p->meta.realtime_ns = int64_t(meta.stamp);
    p->meta.hw_time_ns = int64_t(meta.device_stamp);
    p->meta.checksum_good =
        meta.ip_summed == VMA_SUM_PARTIAL || meta.ip_summed == VMA_SUM_UNNECESSARY;
    ++frames_;
    bytes_ += meta.len;
    return p;
}

// Goes on behind a record that nobody holds.
void Receiver::pass(uint64_t end) {
    at_ = end;
    if (loan_head_ == loan_tail_) {
        freed_ = end;
        if (freed_ - published_ > mask_ / 8) publish();
    } else {
        // Free together with the loan before it.
        loans_[(loan_head_ - 1) % kMostLoans].end = end;
    }
}

void Receiver::give_back(PacketBuf& buf) {
    loans_[buf.lender_cookie % kMostLoans].held = nullptr;
    if (buf.lender_cookie == loan_tail_) free_prefix();
}

void Receiver::free_prefix() {
    while (loan_tail_ != loan_head_ && loans_[loan_tail_ % kMostLoans].held == nullptr) {
        freed_ = loans_[loan_tail_ % kMostLoans].end;
        ++loan_tail_;
    }
    // Every store of the consumer position costs the sender's core a cache miss, so not after every packet.
    if (freed_ - published_ > mask_ / 8) publish();
}

// Frees the front of the ring of packets that nobody reads.
void Receiver::move_old_loans() {
    while (loan_tail_ != loan_head_ && at_ - freed_ > (mask_ + 1) / 2) {
        Loan& oldest = loans_[loan_tail_ % kMostLoans];
        if (PacketBuf* held = oldest.held) {
            Packet carrier = pool_->take(held->len);
            if (!carrier) return;
            std::memcpy(carrier->data, held->data, held->len);
            held->data = carrier->data;
            held->lender = &g_carriers;
            held->lender_cookie = reinterpret_cast<uintptr_t>(carrier.detach());
            oldest.held = nullptr;
            ++moved_;
        }
        free_prefix();
    }
}

void Receiver::publish() {
    published_ = freed_;
    __atomic_store_n(consumer_, freed_, __ATOMIC_RELEASE);
}

bool Receiver::pending() {
    if (published_ != freed_) publish();
    produced_ = __atomic_load_n(producer_, __ATOMIC_ACQUIRE);
    return produced_ != at_;
}

}  // namespace vma
