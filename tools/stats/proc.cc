#include "stats/proc.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace vma::stats {
namespace {

std::string link_target(const std::string& path) {
    char text[4096];
    const ssize_t n = readlink(path.c_str(), text, sizeof text);
    return n > 0 ? std::string(text, size_t(n)) : std::string();
}

// "0100007F:1F90": groups of 32 bits as the kernel's host order prints them, then the port.
bool parse_endpoint(const std::string& text, Endpoint& out) {
    const size_t colon = text.find(':');
    if (colon != 8 && colon != 32) return false;
    uint8_t bytes[16];
    for (size_t i = 0; i < colon; i += 8) {
        const auto word = uint32_t(std::strtoul(text.substr(i, 8).c_str(), nullptr, 16));
        std::memcpy(bytes + i / 2, &word, 4);
    }
    out.addr = colon == 8 ? IpAddr::v4_bytes(bytes) : IpAddr::v6_bytes(bytes);
    out.port = uint16_t(std::strtoul(text.c_str() + colon + 1, nullptr, 16));
    return true;
}

void read_table(uint32_t pid, const char* protocol, std::map<uint64_t, KernelSocket>& out) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/net/" + protocol);
    std::string line;
    std::getline(file, line);  // column names
    while (std::getline(file, line)) {
        char local[40], remote[40];
        unsigned state;
        unsigned long long tx, rx, inode;
        if (std::sscanf(line.c_str(), "%*s %39s %39s %x %llx:%llx %*s %*s %*s %*s %llu", local,
                        remote, &state, &tx, &rx, &inode) != 6 ||
            inode == 0)
            continue;
        KernelSocket s;
        s.protocol = protocol;
        s.state = state;
        s.tx_queue = tx;
        s.rx_queue = rx;
        if (parse_endpoint(local, s.local) && parse_endpoint(remote, s.remote))
            out.emplace(inode, s);
    }
}

}  // namespace

ProcessSockets read_process_sockets(uint32_t pid) {
    ProcessSockets out;
    const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
    DIR* dir = opendir(folder.c_str());
    if (dir == nullptr) return out;
    out.known = true;
    while (const dirent* entry = readdir(dir)) {
        const std::string target = link_target(folder + "/" + entry->d_name);
        if (target.rfind("socket:[", 0) == 0)
            out.fds[std::strtoull(target.c_str() + 8, nullptr, 10)].push_back(
                std::atoi(entry->d_name));
    }
    closedir(dir);
    for (auto& [inode, fds] : out.fds) std::sort(fds.begin(), fds.end());
    for (const char* protocol : {"udp", "tcp", "udp6", "tcp6"})
        read_table(pid, protocol, out.internet);
    return out;
}

std::string executable_name(uint32_t pid) {
    const std::string path = link_target("/proc/" + std::to_string(pid) + "/exe");
    return path.substr(path.rfind('/') + 1);
}

}  // namespace vma::stats
