// Result<T>: a value or an errno code. Source: style guide; g++ 12 has no std::expected in C++20 mode.
#pragma once

#include <cassert>
#include <cerrno>
#include <new>
#include <type_traits>
#include <utility>

namespace vma {

// A positive errno value (errno.h). Zero means success and never travels inside a failed Result.
struct [[nodiscard]] Errno {
    int code = 0;
    constexpr bool operator==(const Errno&) const = default;
};

// Value or Errno, T copied or moved once. No exceptions: reading the value of a failed
// Result is a programming error (asserted in debug).
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : ok_(true) { new (&storage_.value) T(std::move(value)); }
    Result(Errno error) : ok_(false) { storage_.error = error; }
    Result(Result&& other) noexcept : ok_(other.ok_) {
        if (ok_)
            new (&storage_.value) T(std::move(other.storage_.value));
        else
            storage_.error = other.storage_.error;
    }
    Result(const Result& other) : ok_(other.ok_) {
        if (ok_)
            new (&storage_.value) T(other.storage_.value);
        else
            storage_.error = other.storage_.error;
    }
    Result& operator=(const Result&) = delete;
    ~Result() {
        if (ok_) storage_.value.~T();
    }

    bool ok() const { return ok_; }
    explicit operator bool() const { return ok_; }
    T& value() {
        assert(ok_);
        return storage_.value;
    }
    const T& value() const {
        assert(ok_);
        return storage_.value;
    }
    T& operator*() { return value(); }
    const T& operator*() const { return value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }
    // errno code, 0 when ok.
    int error() const { return ok_ ? 0 : storage_.error.code; }

  private:
    union Storage {
        Storage() {}
        ~Storage() {}
        T value;
        Errno error;
    } storage_;
    bool ok_;
};

template <>
class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Errno error) : error_(error.code) {}
    bool ok() const { return error_ == 0; }
    explicit operator bool() const { return ok(); }
    int error() const { return error_; }

  private:
    int error_ = 0;
};

using Status = Result<void>;

}  // namespace vma
