// Runs one role of one behaviour: behaviours --list | --run NAME ... (run.py gives the rest).
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "differential/runtime.h"
#include "stats/reader.h"

namespace behave {
namespace {

std::vector<Behaviour>& all() {
    static std::vector<Behaviour> list;
    return list;
}

constexpr int kTranscript = 200, kChannel = 201, kReport = 202;

bool g_role_a = true, g_preloaded = false, g_settle = false;
uint16_t g_port = 0;
std::string g_stats, g_heard;
std::map<std::string, in_addr_t> g_addresses;

void line(int fd, std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    text += '\n';
    [[maybe_unused]] const long n = syscall(SYS_write, fd, text.data(), text.size());
}

// One more line of the channel, without its end. Bounded; the other role's end is ours, too.
std::string channel_line() {
    const int64_t end = milliseconds() + 2 * kLimit;
    for (;;) {
        const size_t at = g_heard.find('\n');
        if (at != std::string::npos) {
            std::string text = g_heard.substr(0, at);
            g_heard.erase(0, at + 1);
            return text;
        }
        pollfd p{kChannel, POLLIN, 0};
        const int left = int(std::max<int64_t>(0, end - milliseconds()));
        if (syscall(SYS_poll, &p, 1, left) == 0) give_up("the other role says nothing");
        char buffer[512];
        const long n = syscall(SYS_read, kChannel, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) give_up("the other role has ended");
        g_heard.append(buffer, size_t(n));
    }
}

// The reason why the socket with this inode is not served as wanted, or nothing. `unseen`: the page does not know it yet.
std::string wrong_path(const vma::stats::PageFile& page, ino_t inode, vma::stats::Path wanted,
                       bool& unseen) {
    vma::stats::Snapshot snapshot;
    std::string why;
    unseen = false;
    if (!page.read(snapshot, &why)) return why;
    for (const auto& row : snapshot.sockets)
        if (row.id.inode == inode)
            return row.id.path == wanted ? ""
                                         : std::string("is not: ") + reason_name(row.id.reason);
    unseen = true;
    return "is not in the statistics page";
}

// The same for a descriptor. Accepted sockets enter the page with its next publication, which is asked for. The calls here are
// raw: they must not be the library's business.
std::string wrong_path(int fd, vma::stats::Path wanted) {
    struct stat s {};
    std::string wrong;
    auto page = vma::stats::PageFile::open(g_stats, uint32_t(syscall(SYS_getpid)), &wrong);
    if (page && fstat(fd, &s) == 0) {
        const int64_t end = milliseconds() + kLimit;
        bool unseen = true, asked = false;
        while (unseen && milliseconds() < end) {
            wrong = wrong_path(*page, s.st_ino, wanted, unseen);
            if (!unseen || (asked && page->answered(vma::stats::Verb::counters))) break;
            if (!asked) asked = page->ask(vma::stats::Verb::counters) == 0;
            const timespec nap{0, 1000000};
            syscall(SYS_nanosleep, &nap, nullptr);
        }
        if (unseen) wrong = wrong_path(*page, s.st_ino, wanted, unseen);
    }
    return wrong;
}

void check_path(int fd, vma::stats::Path wanted, const char* word) {
    if (!g_preloaded) return;
    const int saved = errno;
    const std::string wrong = wrong_path(fd, wanted);
    line(kReport, wrong.empty()
                      ? std::string(word) + " yes"
                      : std::string(word) + " NO: fd " + std::to_string(fd) + " " + wrong);
    errno = saved;
}

int must(int result, const char* what) {
    if (result < 0) give_up(std::string(what) + " " + error_text());
    return result;
}

void usage() {
    std::fprintf(stderr,
                 "behaviours --list | --run NAME --role a|b --port N --address WHO=IP... --channel "
                 "FD --transcript FD "
                 "--report FD [--settle] [--preloaded --stats DIR]\n");
    std::exit(2);
}

void keep(int from, int to) {
    if (dup3(from, to, O_CLOEXEC) != to) give_up("dup3");
    close(from);
}

}  // namespace

Registered::Registered(const Behaviour& behaviour) { all().push_back(behaviour); }

[[noreturn]] void give_up(const std::string& why) {
    note("gave up: " + why);
    _exit(99);
}

std::string error_text() {
    const char* name = strerrorname_np(errno);
    return name ? name : std::to_string(errno);
}

// ---- Transcript

long see(const char* call, long result) {
    const int saved = errno;
    std::string text = std::string(call) + " = " + std::to_string(result);
    if (result < 0)
        text += " " + error_text();
    else if (errno)
        text += " but errno " + error_text();
    line(kTranscript, text);
    errno = saved;
    return result;
}

const std::string& see(const char* call, const std::string& result) {
    line(kTranscript, std::string(call) + " = " + result);
    return result;
}

void note(const std::string& text) { line(kTranscript, text); }

// ---- The other role

bool role_a() { return g_role_a; }

void tell(const std::string& text) {
    const int saved = errno;
    line(kChannel, text);
    errno = saved;
}

std::string hear() {
    const int saved = errno;
    std::string text = channel_line();
    errno = saved;
    return text;
}

void step(const char* name) {
    tell(std::string("at ") + name);
    const std::string other = hear();
    if (other != std::string("at ") + name)
        give_up(std::string("at step ") + name + ", the other role " + other);
}

// ---- Ring or kernel

void by_ring(int fd, unsigned received, unsigned sent) {
    if (!g_preloaded) return;
    const int saved = errno;
    struct stat s {};
    std::string wrong;
    auto page = vma::stats::PageFile::open(g_stats, uint32_t(syscall(SYS_getpid)), &wrong);
    if (page && fstat(fd, &s) == 0 && page->ask(vma::stats::Verb::counters) == 0) {
        for (const int64_t end = milliseconds() + kLimit;
             !page->answered(vma::stats::Verb::counters) && milliseconds() < end;) {
            const timespec nap{0, 1000000};
            syscall(SYS_nanosleep, &nap, nullptr);
        }
        vma::stats::Snapshot snapshot;
        if (page->read(snapshot, &wrong)) {
            wrong = "is not in the statistics page";
            for (const auto& row : snapshot.sockets) {
                if (row.id.inode != s.st_ino) continue;
                const auto& n = row.numbers;
                wrong = n.rx_packets == received && n.tx_packets == sent
                            ? ""
                            : "received " + std::to_string(n.rx_packets) + ", sent " +
                                  std::to_string(n.tx_packets) + " by the ring";
            }
        }
    }
    line(kReport, wrong.empty() ? "ring yes" : "ring NO: fd " + std::to_string(fd) + " " + wrong);
    errno = saved;
}

void on_ring(int fd) { check_path(fd, vma::stats::Path::offloaded, "ring"); }
void on_kernel(int fd) { check_path(fd, vma::stats::Path::kernel, "kernel"); }

// ---- Addresses

uint16_t port(int offset) { return uint16_t(g_port + offset); }

sockaddr_in at(const char* who, uint16_t number) {
    const auto found = g_addresses.find(who);
    if (found == g_addresses.end()) give_up(std::string("no address of ") + who);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(number);
    address.sin_addr.s_addr = found->second;
    return address;
}

std::string shown(const sockaddr_in& name) {
    if (name.sin_family != AF_INET) return "family " + std::to_string(name.sin_family);
    std::string who = "?";
    for (const auto& [word, address] : g_addresses)
        if (address == name.sin_addr.s_addr) who = word;
    const int number = ntohs(name.sin_port);
    if (number == 0) return who + ":0";
    if (number >= g_port && number < g_port + 16)
        return who + ":+" + std::to_string(number - g_port);
    return who + ":*";
}

std::string name_of(int fd) {
    sockaddr_in name{};
    socklen_t len = sizeof name;
    if (getsockname(fd, raw(name), &len) < 0) return "-1 " + error_text();
    return shown(name) + (len == sizeof name ? "" : " len " + std::to_string(len));
}

std::string peer_of(int fd) {
    sockaddr_in name{};
    socklen_t len = sizeof name;
    if (getpeername(fd, raw(name), &len) < 0) return "-1 " + error_text();
    return shown(name) + (len == sizeof name ? "" : " len " + std::to_string(len));
}

// ---- Sockets

int bind_to(int fd, const char* who, int offset) {
    const sockaddr_in address = at(who, port(offset));
    return bind(fd, raw(address), sizeof address);
}

int bind_any(int fd, const char* who) {
    const sockaddr_in address = at(who, 0);
    return bind(fd, raw(address), sizeof address);
}

int connect_to(int fd, const char* who, int offset) {
    const sockaddr_in address = at(who, port(offset));
    return connect(fd, raw(address), sizeof address);
}

int listening(int offset, int backlog) {
    const int fd = must(tcp(), "socket");
    set(fd, SOL_SOCKET, SO_REUSEADDR);
    must(bind_to(fd, "any", offset), "bind");
    must(listen(fd, backlog), "listen");
    nonblocking(fd);
    if (accept(fd, nullptr, nullptr) != -1 || errno != EAGAIN)
        give_up("accept before anybody dialled");
    nonblocking(fd, false);
    return fd;
}

int accepted(int listener) {
    step("listening");
    const int fd = must(accept(listener, nullptr, nullptr), "accept");
    on_ring(fd);
    return fd;
}

int dialled(int offset) {
    const int fd = must(tcp(), "socket");
    step("listening");
    must(connect_to(fd, g_role_a ? "b" : "a", offset), "connect");
    on_ring(fd);
    return fd;
}

namespace {

// A connection of one host leaves the kernel after a few calls: bytes go to and fro until both ends have.
void settle(int fd) {
    const int64_t end = milliseconds() + kLimit;
    bool moved = false;
    for (bool both = false; !both;) {
        char byte = 's';
        const auto sends = [&] { must(int(send(fd, &byte, 1, 0)), "send"); };
        if (g_role_a) sends();
        must(int(recv(fd, &byte, 1, 0)), "recv");
        if (!g_role_a) sends();
        moved = !g_preloaded || wrong_path(fd, vma::stats::Path::offloaded).empty();
        const bool through = moved || milliseconds() > end;
        tell(through ? "moved" : "here");
        both = hear() == "moved" && through;
    }
    if (g_preloaded) line(kReport, moved ? "moved yes" : "moved NO: it stays with the kernel");
}

}  // namespace

int connected(int offset) {
    const int listener = g_role_a ? -1 : listening(offset);
    const int fd = g_role_a ? dialled(offset) : accepted(listener);
    step("connected");
    if (!g_role_a) close(listener);
    if (g_settle) settle(fd);
    return fd;
}

int udp_bound(int offset, const char* who) {
    const int fd = must(udp(), "socket");
    must(bind_to(fd, who ? who : g_role_a ? "a" : "b", offset), "bind");
    on_ring(fd);
    return fd;
}

int udp_pair(int offset) {
    const int fd = udp_bound(offset);
    step("bound");
    must(connect_to(fd, g_role_a ? "b" : "a", offset), "connect");
    step("joined");
    return fd;
}

int set(int fd, int level, int name, int value) {
    return setsockopt(fd, level, name, &value, sizeof value);
}

std::string option(int fd, int level, int name) {
    int value[2] = {};
    socklen_t len = sizeof value;
    if (getsockopt(fd, level, name, value, &len) < 0) return "-1 " + error_text();
    return std::to_string(value[0]) + (len == sizeof(int) ? "" : " len " + std::to_string(len));
}

void set_time(int fd, int name, int ms) {
    const timeval tv{ms / 1000, ms % 1000 * 1000};
    must(setsockopt(fd, SOL_SOCKET, name, &tv, sizeof tv), "setsockopt of a time");
}

void linger_for(int fd, int seconds) {
    const struct linger l { 1, seconds };
    must(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l), "SO_LINGER");
}

void nonblocking(int fd, bool yes) {
    const int flags = must(fcntl(fd, F_GETFL), "F_GETFL");
    must(fcntl(fd, F_SETFL, yes ? flags | O_NONBLOCK : flags & ~O_NONBLOCK), "F_SETFL");
}

long put(int fd, const std::string& text, int flags) {
    return send(fd, text.data(), text.size(), flags);
}

std::string got(int fd, size_t size, int flags) {
    std::string buffer(size, '?');
    const ssize_t n = recv(fd, buffer.data(), size, flags);
    if (n < 0) return "-1 " + error_text();
    if (size_t(n) > size) return std::to_string(n) + " \"" + buffer + "\"";
    if (n > 64)
        return std::to_string(n) + " hash " + std::to_string(hash(buffer.substr(0, size_t(n))));
    return std::to_string(n) + " \"" + buffer.substr(0, size_t(n)) + "\"";
}

std::string rest(int fd) {
    std::string all_of_it, piece(65536, 0);
    for (;;) {
        pollfd p{fd, POLLIN, 0};
        if (poll(&p, 1, kLimit) == 0) return "timeout after " + std::to_string(all_of_it.size());
        const ssize_t n = recv(fd, piece.data(), piece.size(), 0);
        if (n < 0 && errno == EINTR) continue;
        if (n > 0) {
            all_of_it.append(piece, 0, size_t(n));
            continue;
        }
        const std::string end = n == 0 ? "end" : error_text();
        return std::to_string(all_of_it.size()) + " bytes, hash " +
               std::to_string(hash(all_of_it)) + ", " + end;
    }
}

std::string pattern(size_t n) {
    std::string text(n, 0);
    uint32_t x = 1;
    for (char& c : text) {
        x = x * 1664525 + 1013904223;
        c = char('a' + (x >> 24) % 26);
    }
    return text;
}

uint64_t hash(const std::string& text) {  // FNV-1a
    uint64_t h = 0xcbf29ce484222325;
    for (const char c : text) h = (h ^ uint8_t(c)) * 0x100000001b3;
    return h;
}

}  // namespace behave

int main(int argc, char** argv) {
    std::string name, role;
    int channel = -1, transcript = -1, report = -1;
    g_addresses["any"] = htonl(INADDR_ANY);
    g_addresses["lo"] = htonl(INADDR_LOOPBACK);
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        if (word == "--list") {
            for (const Behaviour& b : all()) {
                std::string group = b.file;
                group = group.substr(group.rfind('/') + 1);
                group.resize(group.rfind('.'));
                std::printf("%s\t%s\t%u\t%s\n", group.c_str(), b.name, b.kind, b.title);
            }
            return 0;
        }
        if (word == "--preloaded") {
            g_preloaded = true;
            continue;
        }
        if (word == "--settle") {
            g_settle = true;
            continue;
        }
        if (i + 1 == argc) usage();
        const std::string value = argv[++i];
        if (word == "--run")
            name = value;
        else if (word == "--role")
            role = value;
        else if (word == "--port")
            g_port = uint16_t(std::stoi(value));
        else if (word == "--channel")
            channel = std::stoi(value);
        else if (word == "--transcript")
            transcript = std::stoi(value);
        else if (word == "--report")
            report = std::stoi(value);
        else if (word == "--stats")
            g_stats = value;
        else if (word == "--address") {
            const size_t at = value.find('=');
            g_addresses[value.substr(0, at)] = inet_addr(value.substr(at + 1).c_str());
        } else
            usage();
    }
    const auto found = std::find_if(all().begin(), all().end(),
                                    [&](const Behaviour& b) { return name == b.name; });
    if (found == all().end() || (role != "a" && role != "b") || transcript < 0) usage();
    g_role_a = role == "a";
    keep(transcript, kTranscript);
    keep(report, kReport);
    if (channel >= 0) keep(channel, kChannel);
    (g_role_a ? found->a : found->b)();
    if (!(found->kind & solo)) step("end");
    note("returned");
    return 0;
}
