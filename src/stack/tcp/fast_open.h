// TCP Fast Open, RFC 7413: text in the SYN for a peer that has given us a cookie, and the cookies that we give. The cookie is
// made as Linux makes it (SipHash of the client's and the server's address), so that kernel and library accept each
// other's when they share a key. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "base/ip_addr.h"
#include "base/seq.h"
#include "wire/tcp_options.h"

namespace vma::tcp {

// Bits of net.ipv4.tcp_fastopen.
namespace fast_open {
inline constexpr uint32_t client = 1, server = 2, client_no_cookie = 4, server_no_cookie = 0x200,
                          server_all_listeners = 0x400;
}

inline constexpr unsigned kCookieBytes = 8;

struct Cookie {
    uint8_t len = 0;  // 0: none; else 4 to 16, even
    std::array<uint8_t, 16> bytes{};
    bool operator==(const Cookie&) const = default;
};

// Keys of a listener (TCP_FASTOPEN_KEY): cookies are made with the first, those of the second are still accepted.
struct FastOpenKeys {
    uint8_t count = 0;  // 0: Fast Open is off
    uint64_t words[2][2] = {};
};
Cookie make_cookie(const FastOpenKeys& keys, unsigned which, const IpAddr& client,
                   const IpAddr& server);
// Was it made with any of the keys? `old`: not with the first.
bool cookie_good(const FastOpenKeys& keys, const IpAddr& client, const IpAddr& server,
                 const TcpOptions& syn, bool& old);

// What one connection has to do with it.
struct FastOpen {
    bool client = false;  // the first SYN carries the option, and text if there is a cookie
    bool server =
        false;  // opened by a SYN with text: readable and writable before the handshake is over
    bool news = false;     // the peer's SYN-ACK had a cookie: `cookie` is it
    bool refused = false;  // it did not take the text of our SYN, or did not get it
    bool taken = false;    // text of a SYN was taken, either way
    uint8_t failure = 0;   // Linux's TFO_*: 1 no cookie, 2 text not acknowledged, 3 SYN repeated
    uint16_t room = 0;     // text that the SYN may carry
    Cookie cookie;
};

}  // namespace vma::tcp
