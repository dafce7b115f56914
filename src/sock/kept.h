// Receiving without a copy: the program gets the addresses of packets and keeps these until it gives them back
// (docs/decisions/0017-kept-packets.md).
#pragma once

#include <sys/uio.h>

namespace vma::sock {

// Where such a receive puts what it takes.
class Taker {
  public:
    // `must`: fail with EIO rather than copy.
    explicit Taker(bool must) : must_(must) {}
    bool must() const { return must_; }
    // For one more packet?
    virtual bool room() const = 0;
    // `id`: by which the program gives it back.
    virtual void put(void* id, const iovec& text) = 0;

  protected:
    ~Taker() = default;

  private:
    const bool must_;
};

}  // namespace vma::sock
