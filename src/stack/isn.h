// Initial sequence numbers and timestamp offsets: RFC 6528 section 3, RFC 7323 section 7.1. The secret comes from
// getrandom(2) at start and is passed in. Pure.
#pragma once

#include "base/ip_addr.h"
#include "base/seq.h"
#include "base/siphash.h"
#include "base/time.h"

namespace vma {

struct IsnSecret {
    uint64_t k0 = 0, k1 = 0;
};

namespace isn_detail {
inline uint64_t tuple_hash(const IsnSecret& s, uint64_t purpose, const Endpoint& local,
                           const Endpoint& remote) {
    uint64_t words[6];
    std::memcpy(words, local.addr.bytes.data(), 16);
    std::memcpy(words + 2, remote.addr.bytes.data(), 16);
    words[4] = uint64_t(local.port) << 16 | remote.port;
    words[5] = purpose;
    return siphash24(s.k0, s.k1, words, sizeof(words));
}
}  // namespace isn_detail

// ISN = M + F(tuple, secret); M ticks every 64 ns like Linux's (RFC 6528 asks for about 4 us; faster is safe).
inline Seq initial_seq(const IsnSecret& secret, const Endpoint& local, const Endpoint& remote,
                       Instant now) {
    return {uint32_t(isn_detail::tuple_hash(secret, 1, local, remote)) + uint32_t(now.ns >> 6)};
}
// Per address pair, so that a peer can use PAWS across our ports (RFC 7323 section 7.1 B).
inline uint32_t timestamp_offset(const IsnSecret& secret, Endpoint local, Endpoint remote) {
    local.port = remote.port = 0;
    return uint32_t(isn_detail::tuple_hash(secret, 2, local, remote));
}

}  // namespace vma
