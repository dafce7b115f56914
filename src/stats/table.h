// Table: rows of one kind in segments of the page, each twice as long as the one before: segment s holds first << s rows.
#pragma once

#include <bit>
#include <cstdint>

#include "stats/page.h"

namespace vma::stats {

class Table {
  public:
    // `recycles`: rows are given back one by one.
    constexpr Table(SegmentKind kind, uint32_t row_size, uint32_t first, bool recycles)
        : kind_(kind), row_size_(row_size), first_(first), recycles_(recycles) {}

    SegmentKind kind() const { return kind_; }
    uint32_t capacity() const { return first_ * ((1u << segments_) - 1); }
    // One more segment. False: the page has no room for it.
    bool grow(Page& page);
    void forget();  // the page has been dropped

    // A free row, growing if need be; UINT32_MAX: none.
    uint32_t take(Page& page);
    void give_back(uint32_t row);

    struct Place {
        unsigned part;  // of the page
        uint32_t row;   // of the part
    };
    Place place_of(uint32_t i) const {
        const unsigned s = segment_of(i);
        return {part_[s], i - before(s)};
    }
    template <class Row>
    static Row& row(const Page& page, Place place) {
        return *reinterpret_cast<Row*>(page.row(place.part, place.row));
    }
    // fn(row), and viewers see what it did.
    template <class Row, class Fn>
    void write(Page& page, uint32_t i, Fn&& fn) const {
        const Place place = place_of(i);
        fn(row<Row>(page, place));
        page.show_row(place.part, place.row);
    }

  private:
    static constexpr unsigned kSegments = 14;
    unsigned segment_of(uint32_t i) const { return unsigned(std::bit_width(i / first_ + 1)) - 1; }
    uint32_t before(unsigned segment) const { return first_ * ((1u << segment) - 1); }
    uint32_t& link(uint32_t i) const {
        return next_free_[segment_of(i)][i - before(segment_of(i))];
    }

    SegmentKind kind_;
    uint32_t row_size_;
    uint32_t first_;
    bool recycles_;
    unsigned part_[kSegments] = {};  // of the page
    unsigned segments_ = 0;
    uint32_t* next_free_[kSegments] = {};  // free rows as a list of indices
    uint32_t free_row_ = UINT32_MAX;
};

}  // namespace vma::stats
