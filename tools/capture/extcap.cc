#include "capture/extcap.h"

#include <fmt/format.h>

#include <charconv>

#include "stats/reader.h"

namespace vma::capture {
namespace {
constexpr char kName[] = "vma-";
}

std::string extcap_interfaces(const std::string& directory) {
    std::string out = "extcap {version=1.0}{help=docs/STATS.md}{display=libvma}\n", why;
    for (const uint32_t pid : stats::list_pages(directory, &why)) {
        const auto page = stats::PageFile::open(directory, pid, &why);
        stats::Snapshot snapshot;
        if (!page || !page->process_lives() || !page->read(snapshot, &why)) continue;
        std::string program = snapshot.program;
        for (char& c : program)
            if (c == '{' || c == '}') c = '?';
        out += fmt::format("interface {{value={}{}}}{{display=libvma: {} ({})}}\n", kName, pid,
                           program, pid);
    }
    return out;
}

std::string extcap_dlts() { return "dlt {number=1}{name=EN10MB}{display=Ethernet}\n"; }

std::string extcap_config() {
    return "arg {number=0}{call=--buffer}{display=Buffer}{type=integer}{range=65536,1073741824}"
           "{default=8388608}{tooltip=Bytes between the process and the capture}\n";
}

std::optional<uint32_t> extcap_process(const std::string& name) {
    uint32_t pid = 0;
    if (name.rfind(kName, 0) != 0) return std::nullopt;
    const char *begin = name.data() + sizeof kName - 1, *end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(begin, end, pid);
    if (error != std::errc() || stop != end || pid == 0) return std::nullopt;
    return pid;
}

}  // namespace vma::capture
