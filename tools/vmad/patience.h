// With users whose descriptors cannot be closed at once (fd.h): each time costs the broker, which has one thread for all, kPatienceMs.
#pragma once

#include <sys/types.h>

#include <unordered_map>

#include "base/time.h"

namespace vmad {

class Patience {
  public:
    static constexpr unsigned kMost = 8;
    static constexpr vma::Duration kFor = vma::Duration::seconds(60);

    // Held up so many times more. True: it is over with that user, until kFor after the first time.
    bool spend(uid_t user, unsigned times, vma::Instant now);
    bool is_over(uid_t user, vma::Instant now) const;

  private:
    struct Spent {
        unsigned times = 0;
        vma::Instant since{};
    };
    std::unordered_map<uid_t, Spent> users_;
};

}  // namespace vmad
