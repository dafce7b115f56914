// Two network namespaces joined by a veth pair, made by the test process itself and gone with it. Needs root and iproute2.
#pragma once

#include <string>

#include "base/ip_addr.h"
#include "support/frames.h"

namespace vma::test {

class Veth {
  public:
    struct Side {
        int ns = -1;  // descriptor of the namespace
        int ifindex = 0;
        Mac mac{};
        IpAddr addr;
        std::string name;
    };

    // Leaves the calling thread, which must be the main one, in side a. ok() false: error() says why.
    Veth();
    ~Veth();  // back to where it was
    Veth(const Veth&) = delete;
    Veth& operator=(const Veth&) = delete;

    bool ok() const { return error_.empty(); }
    const std::string& error() const { return error_; }
    const Side& a() const { return sides_[0]; }
    const Side& b() const { return sides_[1]; }
    // Runs a shell command inside a side; its exit status.
    static int run(const Side& side, const std::string& command);

  private:
    int home_ = -1;
    Side sides_[2];
    std::string error_;
};

// The calling thread is in `side` while this lives.
class Inside {
  public:
    explicit Inside(const Veth::Side& side);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

  private:
    int before_;
};

}  // namespace vma::test
