#include "stats/preload.h"

#include <elf.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

namespace vma::stats {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kMachine = EM_X86_64;
#else
constexpr Elf64_Half kMachine = EM_AARCH64;
#endif

std::string contents(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}

// What the program's own file says; empty: nothing that stands in the way.
std::string obstacle_in_file(const std::string& exe) {
    std::ifstream in(exe, std::ios::binary);
    Elf64_Ehdr head{};
    if (!in.read(reinterpret_cast<char*>(&head), sizeof head)) return "";
    if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return "";
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != kMachine)
        return "it is built for another machine or word size than libvma.so";
    for (unsigned i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr segment{};
        in.seekg(std::streamoff(head.e_phoff + uint64_t(i) * head.e_phentsize));
        if (!in.read(reinterpret_cast<char*>(&segment), sizeof segment)) return "";
        if (segment.p_type == PT_INTERP) return "";
    }
    return "it is statically linked, and no loader takes a library into it";
}

// AT_SECURE of its auxiliary vector.
bool runs_secure(const std::string& folder) {
    const std::string vector = contents(folder + "/auxv");
    for (size_t at = 0; at + 16 <= vector.size(); at += 16) {
        uint64_t pair[2];
        std::memcpy(pair, vector.data() + at, sizeof pair);
        if (pair[0] == AT_SECURE) return pair[1] != 0;
    }
    return false;
}

}  // namespace

std::string why_no_page(uint32_t pid) {
    const std::string folder = "/proc/" + std::to_string(pid);
    struct stat st;
    if (stat(folder.c_str(), &st) != 0) return fmt::format("there is no process {}", pid);
    char exe[4096] = "";
    const ssize_t n = readlink((folder + "/exe").c_str(), exe, sizeof exe - 1);
    const std::string program =
        n > 0 ? std::string(exe, size_t(n)) : fmt::format("process {}", pid);
    if (const std::string obstacle = obstacle_in_file(folder + "/exe"); !obstacle.empty())
        return fmt::format("{} cannot be preloaded: {}", program, obstacle);
    const std::string maps = contents(folder + "/maps");
    if (maps.find("libvma.so") != std::string::npos ||
        maps.find("libvma-debug.so") != std::string::npos)
        return fmt::format(
            "process {} is preloaded, but has made no socket yet, or its pages are elsewhere "
            "(VMA_STATS_SHMEM_DIR, -k)",
            pid);
    if (runs_secure(folder))
        return fmt::format(
            "{} cannot be preloaded: it is set-user-id or has file capabilities, and the loader "
            "then "
            "takes libraries from the system directories only",
            program);
    return fmt::format("process {} is not preloaded: start it with LD_PRELOAD=libvma.so", pid);
}

}  // namespace vma::stats
