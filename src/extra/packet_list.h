// What recvfrom_zcopy() writes into the program's buffer: vma_packets_t with its records, or one vma_datagram_t (layout 606).
#pragma once

#include <cstring>

#include "mellanox/vma_extra.h"
#include "sock/kept.h"

namespace vma::extra {

class PacketList final : public sock::Taker {
  public:
    // `whole`: only with room for the record and its iovec. The programs that receive datagrams are told of a missing iovec by
    // MSG_TRUNC, those that read streams get no record without.
    PacketList(void* buffer, size_t bytes, bool counted, bool whole, bool must)
        : Taker(must),
          begin_(static_cast<uint8_t*>(buffer)),
          at_(begin_),
          left_(bytes),
          whole_(whole),
          counted_(counted) {
        if (!counted_) return;
        const size_t head = left_ < sizeof(vma_packets_t) ? left_ : sizeof(vma_packets_t);
        at_ += head;
        left_ -= head;
    }

    bool room() const override {
        return left_ >= sizeof(vma_packet_t) + (whole_ ? sizeof(iovec) : 0);
    }
    void put(void* id, const iovec& text) override {
        const size_t pieces = left_ >= sizeof(vma_packet_t) + sizeof(iovec);
        truncated_ |= pieces == 0;
        std::memcpy(at_ + offsetof(vma_packet_t, packet_id), &id, sizeof id);
        std::memcpy(at_ + offsetof(vma_packet_t, sz_iov), &pieces, sizeof pieces);
        if (pieces) std::memcpy(at_ + sizeof(vma_packet_t), &text, sizeof text);
        const size_t record = sizeof(vma_packet_t) + pieces * sizeof text;
        at_ += record;
        left_ -= record;
        count_++;
        if (counted_) std::memcpy(begin_, &count_, sizeof count_);
    }
    bool any() const { return count_ != 0; }
    bool truncated() const { return truncated_; }

  private:
    uint8_t* const begin_;
    uint8_t* at_;
    size_t left_, count_ = 0;
    const bool whole_, counted_;
    bool truncated_ = false;
};

}  // namespace vma::extra
