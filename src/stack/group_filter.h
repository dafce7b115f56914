// GroupFilter: which multicast datagrams one socket takes on one interface: its memberships with their source filters (RFC 3376
// section 3.1). Groups and sources in host order. Made by its owner in one block of memory of any allocator and then only read.
//
//     block:  GroupFilter | Group x groups, ascending | source addresses, ascending within each group
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <span>

namespace vma {

class GroupFilter {
  public:
    struct Membership {
        uint32_t group = 0;
        bool exclude = true;  // every source but these; else these only
        std::span<const uint32_t> sources;
    };

    static size_t bytes(size_t groups, size_t sources) {
        return sizeof(GroupFilter) + groups * sizeof(Group) + sources * sizeof(uint32_t);
    }
    // Into `block`, aligned as a pointer, which has bytes() for what is in `memberships` (each group once).
    static GroupFilter* make(void* block, std::span<const Membership> memberships) {
        auto* filter = new (block) GroupFilter;
        filter->count_ = uint32_t(memberships.size());
        uint32_t* next = filter->sources();
        for (size_t i = 0; i < memberships.size(); i++) {
            const Membership& m = memberships[i];
            filter->groups()[i] = {m.group, uint32_t(next - filter->sources()),
                                   uint32_t(m.sources.size()), m.exclude};
            uint32_t* end = std::copy(m.sources.begin(), m.sources.end(), next);
            std::sort(next, end);
            next = end;
        }
        std::sort(filter->groups(), filter->groups() + filter->count_,
                  [](const Group& a, const Group& b) { return a.group < b.group; });
        return filter;
    }

    bool admits(uint32_t group, uint32_t source) const {
        const Group* end = groups() + count_;
        const Group* g = std::lower_bound(groups(), end, group,
                                          [](const Group& a, uint32_t b) { return a.group < b; });
        if (g == end || g->group != group) return false;
        const uint32_t* first = sources() + g->first;
        return std::binary_search(first, first + g->count, source) != g->exclude;
    }

  private:
    struct Group {
        uint32_t group, first, count;
        bool exclude;
    };
    GroupFilter() = default;
    Group* groups() { return reinterpret_cast<Group*>(this + 1); }
    const Group* groups() const { return reinterpret_cast<const Group*>(this + 1); }
    uint32_t* sources() { return reinterpret_cast<uint32_t*>(groups() + count_); }
    const uint32_t* sources() const { return reinterpret_cast<const uint32_t*>(groups() + count_); }

    uint32_t count_ = 0;
};

}  // namespace vma
