// DropReason: why a frame was not delivered, counted under one name everywhere (drop_reasons.def).
#pragma once

#include <cstdint>

namespace vma {

enum class DropReason : uint8_t {
#define DROP(name, help) name,
#include "base/drop_reasons.def"
#undef DROP
    count
};

const char* drop_name(DropReason);  // static text, "unknown" out of range
const char* drop_help(DropReason);

struct DropCounters {
    uint64_t n[unsigned(DropReason::count)] = {};
    void add(DropReason r, uint64_t k = 1) { n[unsigned(r)] += k; }
    uint64_t operator[](DropReason r) const { return n[unsigned(r)]; }
    DropCounters& operator+=(const DropCounters& other) {
        for (unsigned i = 0; i < unsigned(DropReason::count); i++) n[i] += other.n[i];
        return *this;
    }
    uint64_t sum() const {
        uint64_t all = 0;
        for (const uint64_t k : n) all += k;
        return all;
    }
};

}  // namespace vma
