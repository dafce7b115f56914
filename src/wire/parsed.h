// Parsed<T>: what a parser of wire/ returns: a view, or the DropReason why the bytes are not one.
// Trivially copyable, no allocation. DropReason::none means ok and never travels inside a failed
// Parsed.
#pragma once

#include <cassert>

#include "base/drop.h"

namespace vma {

template <class T>
class [[nodiscard]] Parsed {
  public:
    constexpr Parsed(const T& value) : value_(value) {}
    constexpr Parsed(DropReason why) : why_(why) { assert(why != DropReason::none); }

    constexpr bool ok() const { return why_ == DropReason::none; }
    constexpr explicit operator bool() const { return ok(); }
    constexpr DropReason why() const { return why_; }  // none when ok
    constexpr const T& value() const {
        assert(ok());
        return value_;
    }
    constexpr const T& operator*() const { return value(); }
    constexpr const T* operator->() const { return &value(); }

  private:
    T value_{};
    DropReason why_ = DropReason::none;
};

}  // namespace vma
