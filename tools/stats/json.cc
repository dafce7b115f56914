// --json: everything that the page and /proc tell, for programs. Names are those of layout.h; numbers are totals.
#include <nlohmann/json.hpp>

#include "stats/fields.h"
#include "stats/views.h"

namespace vma::stats {
namespace {

using Json = nlohmann::ordered_json;

template <class Numbers>
void add_numbers(Json& to, std::span<const Field<Numbers>> fields, const Numbers& n) {
    for (const Field<Numbers>& f : fields) to[f.name] = n.*f.value;
}

Json tcp_of(const TcpNumbers& n) {
    static constexpr const char* kCaStates[] = {"open", "disorder", "cwr", "recovery", "loss"};
    Json out = {
        {"congestion_control", printable(n.congestion_control, sizeof n.congestion_control)},
        {"ca_state", n.ca_state < std::size(kCaStates) ? kCaStates[n.ca_state] : "?"},
        {"waiting", n.waiting == Waiting::none ? Json(nullptr) : Json(waiting_name(n.waiting))},
        {"timestamps", (n.options & 1) != 0},
        {"sack", (n.options & 2) != 0},
        {"ecn", (n.options & 8) != 0},
        {"snd_wscale", n.snd_wscale},
        {"rcv_wscale", n.rcv_wscale},
        {"pacing_rate", n.pacing_rate == UINT64_MAX ? Json(nullptr) : Json(n.pacing_rate)}};
    for (const TcpField& f : tcp_fields()) out[f.name] = f.value(n);
    return out;
}

Json times_of(const Histogram& h) {
    const uint64_t count = h.count();
    Json buckets = Json::array();
    for (unsigned i = 0; i < Histogram::kBuckets; i++)
        if (h.n[i]) buckets.push_back({Histogram::floor_of(i), h.n[i]});
    return {{"count", count},
            {"mean", count ? h.sum / count : 0},
            {"p50", h.percentile(0.5)},
            {"p90", h.percentile(0.9)},
            {"p99", h.percentile(0.99)},
            {"p999", h.percentile(0.999)},
            {"max", h.max},
            {"buckets", std::move(buckets)}};
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
        if (id.rx_thread || id.tx_thread)
            s["threads"] = {{"receive", id.rx_thread}, {"send", id.tx_thread}};
        add_numbers(s["counters"], socket_fields(), v.row.numbers);
        if (v.row.tcp.here) s["tcp"] = tcp_of(v.row.tcp);
    }
    return s;
}

Json ring_of(const RingRow& ring, uint32_t drop_reasons) {
    Json drops = Json::object();
    for (unsigned i = 1; i < std::min<uint32_t>(drop_reasons, unsigned(DropReason::count)); i++)
        if (ring.drops[i]) drops[drop_name(DropReason(i))] = ring.drops[i];
    Json out = {{"interface", printable(ring.id.interface, sizeof ring.id.interface)},
                {"ifindex", ring.id.ifindex},
                {"kind", printable(ring.id.kind, sizeof ring.id.kind)},
                {"open", ring.id.open != 0}};
    add_numbers(out, ring_fields(), ring.numbers);
    out["drops"] = std::move(drops);
    return out;
}

Json wait_of(const WaitRow& w) {
    Json out = {{"name", wait_name(w.id)}, {"fd", w.id.fd}};
    add_numbers(out, wait_fields(), w.numbers);
    return out;
}

Json option_of(const OptionRow& o) {
    return {{"name", printable(o.name, sizeof o.name)},
            {"value", printable(o.value, sizeof o.value)},
            {"origin", origin_name(o.origin)}};
}

Json rules_of(const Snapshot& page) {
    static constexpr const char* kUses[] = {"?", "deciding", "other_program", "other_transport",
                                            "covered"};
    const Header& h = page.header;
    Json list = Json::array();
    for (const RuleRow& r : page.rules)
        list.push_back({{"line", r.line},
                        {"text", printable(r.text, sizeof r.text)},
                        {"use", kUses[unsigned(r.use) < std::size(kUses) ? unsigned(r.use) : 0]},
                        {"covered_by", r.covered_by ? Json(r.covered_by) : Json(nullptr)},
                        {"matches", r.matches}});
    return {{"generation", h.rules_generation},
            {"read_again", h.rules_text[0] != '\0'},
            {"ok", h.rules_text[0] == '\0' || h.rules_ok != 0},
            {"text", printable(h.rules_text, sizeof h.rules_text)},
            {"list", std::move(list)}};
}

}  // namespace

std::string to_json(const std::vector<Process>& processes) {
    Json out = Json::array();
    for (const Process& p : processes) {
        Json sockets = Json::array(), rings = Json::array(), waits = Json::array(),
             options = Json::array();
        const LatencyByFd times = latency_by_fd(p);
        for (const SocketView& v : p.sockets) {
            sockets.push_back(socket_of(v));
            if (const auto l = times.find(v.row.id.fd); v.in_page && l != times.end())
                sockets.back()["latency_ns"] = {{"receive", times_of(l->second->receive)},
                                                {"send", times_of(l->second->send)}};
        }
        for (const WaitRow& w : p.page.waits) waits.push_back(wait_of(w));
        for (const OptionRow& o : p.page.options) options.push_back(option_of(o));
        for (const RingRow& r : p.page.rings)
            if (r.in_use) rings.push_back(ring_of(r, p.page.header.drop_reasons));
        out.push_back({{"pid", p.pid},
                       {"program", p.page.program},
                       {"library", printable(p.page.header.library, sizeof p.page.header.library)},
                       {"published_ns", p.page.header.published_ns},
                       {"rules", rules_of(p.page)},
                       {"sockets", std::move(sockets)},
                       {"rings", std::move(rings)},
                       {"waits", std::move(waits)},
                       {"log_level", p.page.header.log_level},
                       {"options", std::move(options)}});
    }
    return Json({{"version", kVersion}, {"processes", std::move(out)}}).dump(2) + "\n";
}

}  // namespace vma::stats
