// SYN cookies, RFC 4987 section 3.6: past the backlog the SYN-ACK's number carries the request, and its timestamp the
// options, as in Linux. A cookie is
//   hash(tuple, IRS) + (minute mod 32) << 27 + (MSS index) << 24 + 24 bits of hash(tuple, IRS, minute, MSS index)
// and is good for one to two minutes.
#include <cstring>

#include "base/siphash.h"
#include "stack/tcp/steps.h"

namespace vma::tcp {
namespace {

constexpr uint16_t kMss[8] = {536, 1024, 1220, 1360, 1400, 1440, 1460, 8960};
constexpr int64_t kMinute = 64000000000;  // ns
// The low bits of the timestamp: window scale (15: none), SACK, ECN.
constexpr uint32_t kOptionBits = 6, kOptionMask = (1u << kOptionBits) - 1;
constexpr uint32_t kNoScaleBits = 15, kSackBit = 16, kEcnBit = 32;

uint32_t hash(const OpenParams& open, Seq irs, uint32_t minute, uint32_t index, uint64_t purpose) {
    uint64_t words[7];
    std::memcpy(words, open.local.addr.bytes.data(), 16);
    std::memcpy(words + 2, open.remote.addr.bytes.data(), 16);
    words[4] = uint64_t(open.local.port) << 16 | open.remote.port;
    words[5] = uint64_t(minute) << 32 | irs.v;
    words[6] = purpose << 8 | index;
    return uint32_t(siphash24(open.secret->k0, open.secret->k1, words, sizeof words));
}

uint32_t mss_index(const SegView& syn) {
    const uint16_t mss = syn.opt.has_mss && syn.opt.mss ? syn.opt.mss : uint16_t(536);
    uint32_t index = 7;
    while (index > 0 && kMss[index] > mss) --index;
    return index;
}

uint32_t minute_of(Instant now) { return uint32_t(now.ns / kMinute); }

uint32_t option_bits(const HalfOpen& h) {
    return (h.wscale == kNoScale ? kNoScaleBits : h.wscale) | (h.sack_ok ? kSackBit : 0) |
           (h.ecn ? kEcnBit : 0);
}

}  // namespace

Seq make_cookie(const OpenParams& open, const SegView& syn, Instant now) {
    const uint32_t index = mss_index(syn), minute = minute_of(now);
    const uint32_t value =
        (minute & 31) << 27 | index << 24 | (hash(open, syn.seq, minute, index, 4) & 0xffffff);
    return {hash(open, syn.seq, 0, 0, 3) + value};
}

uint32_t cookie_timestamp(const HalfOpen& h, Instant now) {
    const uint32_t clock = uint32_t(now.ns / 1000000) + h.ts_offset;
    const uint32_t stamp = (clock & ~kOptionMask) | option_bits(h);
    return int32_t(stamp - clock) > 0 ? stamp - (kOptionMask + 1) : stamp;
}

bool open_cookie(const OpenParams& open, const TcpConfig& cfg, const SegView& ack, Instant now,
                 HalfOpen& h) {
    const Seq irs = ack.seq - 1;
    const Seq iss = ack.ack - 1;
    const uint32_t value = iss.v - hash(open, irs, 0, 0, 3);
    const uint32_t current = minute_of(now);
    const uint32_t age = (current - (value >> 27)) & 31;
    const uint32_t index = value >> 24 & 7;
    if (age > 1) return false;
    if (((hash(open, irs, current - age, index, 4) ^ value) & 0xffffff) != 0) return false;
    h = {};
    h.local = open.local;
    h.remote = open.remote;
    h.irs = irs;
    h.iss = iss;
    h.ts_offset = open.ts_offset;
    h.mss = kMss[index];
    h.wnd = ack.wnd;
    h.retries = 1;  // when the SYN-ACK left is not known: no RTT sample
    h.sent_at = now;
    h.resend_at = now + kRtoInitial;
    if (!cfg.timestamps || !ack.opt.has_timestamps) return true;
    h.has_ts = true;
    h.ts_recent = ack.opt.ts_val;
    const uint32_t bits = ack.opt.ts_ecr & kOptionMask;
    if ((bits & 15) != kNoScaleBits && cfg.window_scaling)
        h.wscale = uint8_t(bits & 15) > 14 ? uint8_t(14) : uint8_t(bits & 15);
    h.sack_ok = cfg.sack && (bits & kSackBit) != 0;
    h.ecn = cfg.ecn != 0 && (bits & kEcnBit) != 0;
    return true;
}

}  // namespace vma::tcp
