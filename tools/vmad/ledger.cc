#include "vmad/ledger.h"

namespace vmad {

constexpr vma::Duration kSecond = vma::Duration::seconds(1);

bool Ledger::Account::admits_flow(uint32_t most, vma::Instant now) {
    if (is_over(now)) {
        second_ = now;
        flows_ = 0;
    }
    return flows_ < most && ++flows_;
}

bool Ledger::Account::is_over(vma::Instant now) const { return now - second_ >= kSecond; }

Ledger::Account& Ledger::begin(pid_t process, vma::Instant now) {
    std::erase_if(accounts_, [now](const auto& entry) {
        return entry.second.sessions == 0 && entry.second.is_over(now);
    });
    Account& account = accounts_[process];
    account.sessions++;
    return account;
}

void Ledger::end(pid_t process, vma::Instant now) {
    const auto it = accounts_.find(process);
    if (--it->second.sessions == 0 && it->second.is_over(now)) accounts_.erase(it);
}

}  // namespace vmad
