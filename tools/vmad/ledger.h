// What the processes that a broker serves have of what its policy counts. Of a process, not of a session: it may begin as many as it
// likes, and one that it ends leaves its rings and what it has used of the second.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <unordered_map>

#include "base/time.h"

namespace vmad {

class Ledger {
  public:
    struct Account {
        uint32_t sessions = 0;
        uint32_t rings = 0;
        uint64_t memory = 0;  // of the rings
        // One second's flows at once, and no more before the next second begins.
        bool admits_flow(uint32_t most, vma::Instant now);

      private:
        friend class Ledger;
        uint32_t flows_ = 0;
        vma::Instant second_{};
        bool is_over(vma::Instant now) const;
    };

    // For the life of a session; the account stays where it is.
    Account& begin(pid_t process, vma::Instant now);
    void end(pid_t process, vma::Instant now);
    size_t size() const { return accounts_.size(); }

  private:
    std::unordered_map<pid_t, Account> accounts_;
};

}  // namespace vmad
