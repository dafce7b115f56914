#include "vmad/patience.h"

namespace vmad {

bool Patience::spend(uid_t user, unsigned times, vma::Instant now) {
    std::erase_if(users_, [now](const auto& entry) { return now - entry.second.since >= kFor; });
    Spent& spent = users_.try_emplace(user, Spent{0, now}).first->second;
    spent.times += times;
    return spent.times >= kMost;
}

bool Patience::is_over(uid_t user, vma::Instant now) const {
    const auto it = users_.find(user);
    return it != users_.end() && it->second.times >= kMost && now - it->second.since < kFor;
}

}  // namespace vmad
