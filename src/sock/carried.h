// Memory for the queues of a connection while it moves; mmap, because this may run in a child of a threaded program.
#pragma once

#include "base/bytes.h"
#include "base/sys.h"

namespace vma::sock {

class Carried {
  public:
    explicit Carried(size_t n) : size_(n) {
        if (n == 0) return;
        void* memory =
            sys::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        data_ = sys::failed(memory) ? nullptr : static_cast<uint8_t*>(memory);
    }
    ~Carried() {
        if (data_) sys::munmap(data_, size_);
    }
    Carried(const Carried&) = delete;
    Carried& operator=(const Carried&) = delete;
    bool ok() const { return size_ == 0 || data_ != nullptr; }
    uint8_t* data() { return data_; }
    ByteSpan span() { return {data_, size_}; }
    ByteView view(size_t from, size_t n) const { return {data_ + from, n}; }

  private:
    uint8_t* data_ = nullptr;
    size_t size_;
};

}  // namespace vma::sock
