// TCP options: MSS (RFC 9293), window scale and timestamps (RFC 7323), SACK (RFC 2018), Fast Open
// cookie (RFC 7413). Pure, no allocation; lengths that lie stop the walk inside the given bytes.
#pragma once

#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/result.h"
#include "base/seq.h"
#include "wire/tcp.h"

namespace vma {

struct SackBlock {
    Seq left, right;  // [left, right): the received block
    bool operator==(const SackBlock&) const = default;
};

struct TcpOptions {
    bool has_mss = false, has_wscale = false, sack_permitted = false, has_timestamps = false,
         has_fast_open = false;
    uint8_t wscale = 0;         // as on the wire: a receiver limits it to 14 (RFC 7323 section 2.3)
    uint8_t sack_count = 0;     // 0..4
    uint8_t fast_open_len = 0;  // cookie bytes: 0 is a request, else 4..16 and even
    uint16_t mss = 0;
    uint32_t ts_val = 0, ts_ecr = 0;
    std::array<SackBlock, 4> sack{};
    std::array<uint8_t, 16> fast_open{};
    bool operator==(const TcpOptions&) const = default;
};

enum class TcpOptionsStatus : uint8_t {
    ok,
    ignored,    // a known option of a wrong length was skipped, the rest is read
    malformed,  // a length below 2 or beyond the end: what came before it is read, the rest is not
};

namespace tcp_option {
constexpr uint8_t end = 0, nop = 1, mss = 2, wscale = 3, sack_permitted = 4, sack = 5,
                  timestamps = 8, fast_open = 34;
}

namespace tcp_options_detail {

// One option of a known or unknown kind; `body` is what follows kind and length. False: known kind,
// wrong length.
inline bool read_one(uint8_t kind, ByteView body, TcpOptions& out) {
    const uint8_t* p = body.data();
    switch (kind) {
        case tcp_option::mss:
            if (body.size() != 2) return false;
            out.has_mss = true;
            out.mss = load_be16(p);
            return true;
        case tcp_option::wscale:
            if (body.size() != 1) return false;
            out.has_wscale = true;
            out.wscale = p[0];
            return true;
        case tcp_option::sack_permitted:
            if (!body.empty()) return false;
            out.sack_permitted = true;
            return true;
        case tcp_option::timestamps:
            if (body.size() != 8) return false;
            out.has_timestamps = true;
            out.ts_val = load_be32(p);
            out.ts_ecr = load_be32(p + 4);
            return true;
        case tcp_option::sack: {
            const size_t n = body.size() / 8;
            if (body.size() % 8 != 0 || n == 0 || n > out.sack.size()) return false;
            out.sack = {};
            for (size_t i = 0; i < n; i++)
                out.sack[i] = {{load_be32(p + 8 * i)}, {load_be32(p + 8 * i + 4)}};
            out.sack_count = uint8_t(n);
            return true;
        }
        case tcp_option::fast_open:
            if (body.size() > out.fast_open.size() || body.size() % 2 != 0 || body.size() == 2)
                return false;
            out.has_fast_open = true;
            out.fast_open = {};
            out.fast_open_len = uint8_t(body.size());
            if (!body.empty()) std::memcpy(out.fast_open.data(), p, body.size());
            return true;
        default:
            return true;
    }
}

}  // namespace tcp_options_detail

// Fills `out` from scratch. A repeated option: the last one counts.
inline TcpOptionsStatus parse_tcp_options(ByteView bytes, TcpOptions& out) {
    out = {};
    TcpOptionsStatus status = TcpOptionsStatus::ok;
    // The layout that almost every segment of an established connection has: NOP NOP TS.
    if (bytes.size() == 12 && load_be32(bytes.data()) == 0x0101080a) {
        out.has_timestamps = true;
        out.ts_val = load_be32(bytes.data() + 4);
        out.ts_ecr = load_be32(bytes.data() + 8);
        return status;
    }
    size_t i = 0;
    while (i < bytes.size()) {
        const uint8_t kind = bytes[i];
        if (kind == tcp_option::end) break;
        if (kind == tcp_option::nop) {
            i++;
            continue;
        }
        if (bytes.size() - i < 2) return TcpOptionsStatus::malformed;
        const size_t len = bytes[i + 1];
        if (len < 2 || len > bytes.size() - i) return TcpOptionsStatus::malformed;
        if (!tcp_options_detail::read_one(kind, bytes.subspan(i + 2, len - 2), out))
            status = TcpOptionsStatus::ignored;
        i += len;
    }
    return status;
}

// Bytes that emit_tcp_options() writes, a multiple of 4; may exceed 40, which emit refuses.
inline uint32_t tcp_options_size(const TcpOptions& o) {
    uint32_t n = 0;
    if (o.has_mss) n += 4;
    if (o.has_timestamps) n += 12;  // with two NOPs, or with SACK-permitted in their place
    if (o.sack_permitted && !o.has_timestamps) n += 4;  // with two NOPs
    if (o.has_wscale) n += 4;
    if (o.has_fast_open) n += (2u + o.fast_open_len + 3) & ~3u;
    if (o.sack_count > 0) n += 4 + 8u * o.sack_count;
    return n;
}

// Writes the options in the order that Linux uses, each aligned to 4 bytes with NOPs. Number of
// bytes written (0 for none); EMSGSIZE when they do not fit into 40 bytes or `out`; EINVAL for
// sack_count > 4 or an impossible cookie length.
inline Result<uint32_t> emit_tcp_options(const TcpOptions& o, ByteSpan out) {
    if (o.sack_count > o.sack.size()) return Errno{EINVAL};
    if (o.has_fast_open &&
        (o.fast_open_len > o.fast_open.size() || o.fast_open_len % 2 != 0 || o.fast_open_len == 2))
        return Errno{EINVAL};
    if (o.has_timestamps && out.size() >= 12 &&
        !(o.has_mss | o.has_wscale | o.sack_permitted | o.has_fast_open) && o.sack_count == 0) {
        // As above: what almost every segment has.
        store_be32(out.data(), 0x0101080a);
        store_be32(out.data() + 4, o.ts_val);
        store_be32(out.data() + 8, o.ts_ecr);
        return 12u;
    }
    const uint32_t size = tcp_options_size(o);
    if (size > kTcpMaxOptions || size > out.size()) return Errno{EMSGSIZE};
    uint8_t* p = out.data();
    auto four = [&p](uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
        p[0] = a, p[1] = b, p[2] = c, p[3] = d;
        p += 4;
    };
    using namespace tcp_option;
    if (o.has_mss) four(mss, 4, uint8_t(o.mss >> 8), uint8_t(o.mss));
    if (o.has_timestamps) {
        if (o.sack_permitted)
            four(tcp_option::sack_permitted, 2, timestamps, 10);
        else
            four(nop, nop, timestamps, 10);
        store_be32(p, o.ts_val);
        store_be32(p + 4, o.ts_ecr);
        p += 8;
    } else if (o.sack_permitted) {
        four(nop, nop, tcp_option::sack_permitted, 2);
    }
    if (o.has_wscale) four(nop, tcp_option::wscale, 3, o.wscale);
    if (o.has_fast_open) {
        const uint32_t len = 2u + o.fast_open_len;
        for (uint32_t pad = len; pad % 4 != 0; pad++) *p++ = nop;
        *p++ = tcp_option::fast_open;
        *p++ = uint8_t(len);
        std::memcpy(p, o.fast_open.data(), o.fast_open_len);
        p += o.fast_open_len;
    }
    if (o.sack_count > 0) {
        four(nop, nop, tcp_option::sack, uint8_t(2 + 8 * o.sack_count));
        for (uint32_t i = 0; i < o.sack_count; i++, p += 8) {
            store_be32(p, o.sack[i].left.v);
            store_be32(p + 4, o.sack[i].right.v);
        }
    }
    return size;
}

}  // namespace vma
