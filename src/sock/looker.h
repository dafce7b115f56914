// Looker: a receive that copies as usual, and is shown each datagram of a ring that it takes before.
#pragma once

#include "sock/kept.h"

namespace vma {
struct UdpDatagram;
}
namespace vma::sock {

class Looker : public Taker {
  public:
    Looker() : Taker(false) {}
    virtual void look(const UdpDatagram& datagram) = 0;
    bool room() const final { return false; }
    void put(void*, const iovec&) final {}

  protected:
    ~Looker() = default;
};

}  // namespace vma::sock
