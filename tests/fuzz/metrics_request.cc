// What a client of `vma_stats --prometheus --listen` sends. Input: pieces, each a byte with its length (0: 256) and as many bytes; all of them are
// there when the server begins to read, which takes what is there in pieces of its own.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "fuzz/fuzz_check.h"
#include "stats/serve.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    constexpr size_t kMost = 10000;  // more than it reads of one request
    std::string request;
    int ends[2];
    // A packet is a piece.
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    const int room = 1 << 20;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    bool ended = false;
    for (size_t at = 0; at < size && request.size() < kMost && !ended;) {
        const size_t n = std::min<size_t>(data[at] ? data[at] : 256, size - at - 1);
        if (n == 0) break;
        ended = send(ends[0], data + at + 1, n, MSG_DONTWAIT | MSG_NOSIGNAL) != ssize_t(n);
        if (!ended) request.append(reinterpret_cast<const char*>(data + at + 1), n);
        at += 1 + n;
    }
    shutdown(ends[0], SHUT_WR);
    unsigned asked = 0;
    vma::stats::answer(ends[1], [&] {
        asked++;
        return std::string("metric 1\n");
    });
    close(ends[1]);
    std::string got(65536, 0);
    ssize_t n = recv(ends[0], got.data(), got.size(), 0);
    // Told once where the server has left something unread, before what it has sent.
    if (n < 0 && errno == ECONNRESET) n = recv(ends[0], got.data(), got.size(), 0);
    got.resize(n > 0 ? size_t(n) : 0);
    close(ends[0]);
    const bool whole = request.find("\r\n\r\n") != std::string::npos;
    const bool good = got.starts_with("HTTP/1.1 200 OK\r\n");
    FUZZ_CHECK(good == (asked == 1));
    FUZZ_CHECK(got.empty() || good || got.starts_with("HTTP/1.1 404 Not Found\r\n"));
    // The page is for who asks for it, all are answered whose request ends, and nobody else is.
    FUZZ_CHECK(!good || request.starts_with("GET /metrics "));
    FUZZ_CHECK(got.empty() || whole);
    FUZZ_CHECK(!whole || request.size() > 8192 || !got.empty());
    FUZZ_CHECK(got.empty() || got.find("\r\n\r\n") != std::string::npos);
    return 0;
}
