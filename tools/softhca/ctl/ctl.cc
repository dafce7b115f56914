// Makes devices of the software HCA fail: softhca_ctl NAME|MAC|PID FAULT (faults.h). SOFTHCA_WIRE chooses the wire. Without
// FAULT it lists what is open.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "softhca/hca/context.h"
#include "softhca/hca/faults.h"

namespace {

void list(softhca::Wire& wire) {
    for (uint32_t i = 0; i < softhca::kMaxStations; i++) {
        const softhca::StationMap* map = wire.station(i);
        if (!map) continue;
        const softhca::Station& s = map->station();
        std::printf("%s %02x:%02x:%02x:%02x:%02x:%02x process %u%s%s\n", s.device, s.mac[0],
                    s.mac[1], s.mac[2], s.mac[3], s.mac[4], s.mac[5], s.pid,
                    s.port_up ? "" : " down", s.fatal ? " lost" : "");
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 || (argc > 1 && argv[1][0] == '-')) {
        std::fprintf(
            stderr,
            "usage: softhca_ctl                        what is open on the wire\n"
            "       softhca_ctl NAME|MAC|PID FAULT     down, up, fatal, overrun send|recv, "
            "error send|recv [STATUS]\n");
        return 2;
    }
    softhca::Wire* const wire = softhca::process_wire();
    if (!wire) {
        std::fprintf(stderr, "softhca_ctl: %s: %s\n", softhca::wire_path().c_str(),
                     std::strerror(errno));
        return 1;
    }
    if (argc == 1) {
        list(*wire);
        return 0;
    }
    const std::vector<std::string> words(argv + 2, argv + argc);
    std::string error;
    if (softhca::inject_fault(*wire, argv[1], words, &error) != 0) return 0;
    std::fprintf(stderr, "softhca_ctl: %s\n", error.c_str());
    return 1;
}
