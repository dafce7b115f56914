// --json: everything that the page and /proc tell, for programs. Names are those of layout.h; numbers are totals.
#include <nlohmann/json.hpp>

#include "stats/views.h"

namespace vma::stats {
namespace {

using Json = nlohmann::ordered_json;

const char* path_name(Path path) {
    switch (path) {
        case Path::undecided:
            return "undecided";
        case Path::offloaded:
            return "offloaded";
        case Path::kernel:
            break;
    }
    return "kernel";
}

Json numbers_of(const SocketNumbers& n) {
    return {{"rx_packets", n.rx_packets},
            {"rx_bytes", n.rx_bytes},
            {"rx_eagain", n.rx_eagain},
            {"rx_errors", n.rx_errors},
            {"rx_os_packets", n.rx_os_packets},
            {"rx_os_bytes", n.rx_os_bytes},
            {"tx_packets", n.tx_packets},
            {"tx_bytes", n.tx_bytes},
            {"tx_eagain", n.tx_eagain},
            {"tx_errors", n.tx_errors},
            {"tx_os_packets", n.tx_os_packets},
            {"tx_os_bytes", n.tx_os_bytes},
            {"poll_hit", n.poll_hit},
            {"poll_miss", n.poll_miss},
            {"rx_queue_packets", n.rx_queue_packets},
            {"rx_queue_bytes", n.rx_queue_bytes},
            {"rx_queue_limit", n.rx_queue_limit},
            {"rx_queue_packets_max", n.rx_queue_packets_max},
            {"rx_dropped_full", n.rx_dropped_full},
            {"tx_queue_bytes", n.tx_queue_bytes},
            {"tx_retransmits", n.tx_retransmits}};
}

Json socket_of(const SocketView& v) {
    const SocketIdentity& id = v.row.id;
    Json rings = Json::array();
    for (unsigned i = 0; i < 64; i++)
        if (id.rings >> i & 1) rings.push_back(i);
    Json s = {{"fd", id.fd},
              {"inode", id.inode},
              {"cookie", id.cookie},
              {"protocol", v.protocol},
              {"path", path_name(id.path)},
              {"reason", v.in_page ? reason_name(id.reason) : "unseen"},
              {"rings", std::move(rings)},
              {"local", endpoint_text(v.local)},
              {"remote", v.remote.port ? Json(endpoint_text(v.remote)) : Json(nullptr)},
              {"tcp_state", v.tcp_state.empty() ? Json(nullptr) : Json(v.tcp_state)},
              {"receive_queue", v.receive_queue},
              {"send_queue", v.send_queue}};
    if (v.in_page) {
        s["meaning"] = reason_meaning(id.reason);
        s["advice"] = reason_advice(id.reason);
        s["nonblocking"] = id.nonblocking != 0;
        s["counters"] = numbers_of(v.row.numbers);
    }
    return s;
}

Json ring_of(const RingRow& ring, uint32_t drop_reasons) {
    const RingNumbers& n = ring.numbers;
    Json drops = Json::object();
    for (unsigned i = 1; i < std::min<uint32_t>(drop_reasons, unsigned(DropReason::count)); i++)
        if (ring.drops[i]) drops[drop_name(DropReason(i))] = ring.drops[i];
    return {{"interface", printable(ring.id.interface, sizeof ring.id.interface)},
            {"ifindex", ring.id.ifindex},
            {"kind", printable(ring.id.kind, sizeof ring.id.kind)},
            {"open", ring.id.open != 0},
            {"rx_frames", n.rx_frames},
            {"rx_bytes", n.rx_bytes},
            {"tx_frames", n.tx_frames},
            {"tx_bytes", n.tx_bytes},
            {"rx_dropped", n.rx_dropped},
            {"tx_refused", n.tx_refused},
            {"wakeups", n.wakeups},
            {"tcp_memory", n.tcp_memory},
            {"tcp_refused", n.tcp_refused},
            {"tcp_pressed", n.tcp_pressed},
            {"drops", std::move(drops)}};
}

Json rules_of(const Header& h) {
    return {{"generation", h.rules_generation},
            {"read_again", h.rules_text[0] != '\0'},
            {"ok", h.rules_text[0] == '\0' || h.rules_ok != 0},
            {"text", printable(h.rules_text, sizeof h.rules_text)}};
}

}  // namespace

std::string to_json(const std::vector<Process>& processes) {
    Json out = Json::array();
    for (const Process& p : processes) {
        Json sockets = Json::array(), rings = Json::array();
        for (const SocketView& v : p.sockets) sockets.push_back(socket_of(v));
        for (const RingRow& r : p.page.rings)
            if (r.in_use) rings.push_back(ring_of(r, p.page.header.drop_reasons));
        out.push_back({{"pid", p.pid},
                       {"program", p.page.program},
                       {"library", printable(p.page.header.library, sizeof p.page.header.library)},
                       {"published_ns", p.page.header.published_ns},
                       {"rules", rules_of(p.page.header)},
                       {"sockets", std::move(sockets)},
                       {"rings", std::move(rings)}});
    }
    return Json({{"version", kVersion}, {"processes", std::move(out)}}).dump(2) + "\n";
}

}  // namespace vma::stats
