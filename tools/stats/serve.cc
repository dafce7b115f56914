#include "stats/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>

namespace vma::stats {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr timeval kPatience{5, 0};
constexpr size_t kLongestRequest = 8192;

std::string response(const char* status, const char* type, const std::string& body) {
    return fmt::format(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
        status, type, body.size(), body);
}

// The request up to its empty line; "" when it does not come, or is longer or slower than any that asks for a page.
std::string read_request(int fd) {
    const auto end = steady_clock::now() + seconds(kPatience.tv_sec);
    std::string request;
    char piece[1024];
    while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n <= 0 || request.size() + size_t(n) > kLongestRequest || steady_clock::now() > end)
            return "";
        request.append(piece, size_t(n));
    }
    return request;
}

void send_all(int fd, const std::string& text) {
    const auto end = steady_clock::now() + seconds(kPatience.tv_sec);
    for (size_t at = 0; at < text.size() && steady_clock::now() <= end;) {
        const ssize_t n = send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
        if (n <= 0) return;
        at += size_t(n);
    }
}

}  // namespace

void answer(int client, const std::function<std::string()>& text) {
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
    setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
    const std::string request = read_request(client);
    if (request.starts_with("GET /metrics "))
        send_all(client, response("200 OK", "text/plain; version=0.0.4", text()));
    else if (!request.empty())
        send_all(client, response("404 Not Found", "text/plain", "GET /metrics\n"));
}

int serve_metrics(uint16_t port, const std::function<std::string()>& text,
                  const std::function<void(uint16_t)>& ready) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof at;
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
        listen(listener, 16) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&at), &len) != 0)
        return errno;
    ready(ntohs(at.sin_port));
    for (;;) {
        const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (client < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            return errno;
        }
        answer(client, text);
        close(client);
    }
}

}  // namespace vma::stats
