#include "stack/tcp/fast_open.h"

#include <cstring>

#include "base/siphash.h"

namespace vma::tcp {

Cookie make_cookie(const FastOpenKeys& keys, unsigned which, const IpAddr& client,
                   const IpAddr& server) {
    uint8_t text[32];
    size_t n = 0;
    for (const IpAddr* a : {&client, &server}) {
        const size_t skip = a->is_v4() ? 12 : 0;  // mapped: the last four bytes are the address
        std::memcpy(text + n, a->bytes.data() + skip, 16 - skip);
        n += 16 - skip;
    }
    const uint64_t hash = siphash24(keys.words[which][0], keys.words[which][1], text, n);
    Cookie c;
    c.len = kCookieBytes;
    for (unsigned i = 0; i < kCookieBytes; ++i) c.bytes[i] = uint8_t(hash >> (8 * i));
    return c;
}

bool cookie_good(const FastOpenKeys& keys, const IpAddr& client, const IpAddr& server,
                 const TcpOptions& syn, bool& old) {
    for (unsigned which = 0; which < keys.count; ++which) {
        const Cookie c = make_cookie(keys, which, client, server);
        if (syn.fast_open_len != c.len || syn.fast_open != c.bytes) continue;
        old = which > 0;
        return true;
    }
    return false;
}

}  // namespace vma::tcp
