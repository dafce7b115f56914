#include "stats/table.h"

#include <utility>

#include "base/sys.h"

namespace vma::stats {
bool Table::grow(Page& page) {
    Header& header = page.header();
    const uint32_t count = header.segment_count;
    if (segments_ == kSegments || count == kMaxSegments) return false;
    const uint32_t rows = first_ << segments_;
    void* links = nullptr;
    if (recycles_) {
        links = sys::mmap(nullptr, rows * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sys::failed(links)) return false;
    }
    const int part = page.append(rows, row_size_);
    if (part < 0) {
        if (links) sys::munmap(links, rows * sizeof(uint32_t));
        return false;
    }
    part_[segments_] = unsigned(part);
    next_free_[segments_] = static_cast<uint32_t*>(links);
    const uint32_t from = capacity();
    segments_++;
    for (uint32_t i = recycles_ ? rows : 0; i-- > 0;)
        link(from + i) = std::exchange(free_row_, from + i);
    page.put(header.segments[count], {kind_, row_size_, page.offset(unsigned(part)), rows});
    page.put(header.segment_count, count + 1);
    return true;
}

void Table::forget() {
    for (unsigned i = 0; i < segments_; i++)
        if (uint32_t* const links = std::exchange(next_free_[i], nullptr))
            sys::munmap(links, (size_t(first_) << i) * sizeof(uint32_t));
    segments_ = 0;
    free_row_ = UINT32_MAX;
}

uint32_t Table::take(Page& page) {
    if (free_row_ == UINT32_MAX && !grow(page)) return UINT32_MAX;
    const uint32_t row = free_row_;
    free_row_ = link(row);
    return row;
}

void Table::give_back(uint32_t row) { link(row) = std::exchange(free_row_, row); }

}  // namespace vma::stats
