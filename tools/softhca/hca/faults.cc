#include "softhca/hca/faults.h"

#include <charconv>
#include <cstdio>
#include <cstring>

#include "softhca/hca/queues.h"
#include "softhca/hca/transport.h"

namespace softhca {
namespace {

enum class Kind { none, down, up, fatal, overrun, error };

struct Fault {
    Kind kind = Kind::none;
    bool send = false;
    uint32_t status = IBV_WC_LOC_PROT_ERR;
};

Fault parse(std::span<const std::string> words) {
    struct Word {
        const char* text;
        Kind kind;
        bool has_side;
    };
    constexpr Word kWords[] = {{"down", Kind::down, false},
                               {"up", Kind::up, false},
                               {"fatal", Kind::fatal, false},
                               {"overrun", Kind::overrun, true},
                               {"error", Kind::error, true}};
    Fault fault;
    for (const Word& w : kWords) {
        if (words.empty() || words[0] != w.text) continue;
        const size_t least = w.has_side ? 2 : 1, most = w.kind == Kind::error ? 3 : least;
        if (words.size() < least || words.size() > most) return {};
        if (w.has_side && words[1] != "send" && words[1] != "recv") return {};
        fault.kind = w.kind;
        fault.send = w.has_side && words[1] == "send";
        if (words.size() < 3) return fault;
        const char* const end = words[2].data() + words[2].size();
        const auto read = std::from_chars(words[2].data(), end, fault.status);
        const bool status = read.ptr == end && read.ec == std::errc() &&
                            fault.status != IBV_WC_SUCCESS && fault.status <= IBV_WC_GENERAL_ERR;
        return status ? fault : Fault();
    }
    return {};
}

std::string text_of(const uint8_t* mac) {
    char text[18];
    std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2],
                  mac[3], mac[4], mac[5]);
    return text;
}

bool fits(const Station& s, const std::string& who) {
    return who == s.device || who == text_of(s.mac) || who == std::to_string(s.pid);
}

void switch_port(Context& by, StationMap& station, bool up) {
    if (station->port_up.exchange(up) == up) return;
    by.wire->directory().flow_generation.fetch_add(1, std::memory_order_release);
    push_async(by, station->index, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, 0);
}

// All that have the port open.
void switch_ports(Context& by, const uint8_t* mac, bool up) {
    for (uint32_t i = 0; i < kMaxStations; i++)
        if (StationMap* s = by.wire->station(i); s && !std::memcmp((*s)->mac, mac, 6))
            switch_port(by, *s, up);
}

void lose_device(Context& by, StationMap& station) {
    if (station->fatal.exchange(true)) return;
    push_async(by, station->index, IBV_EVENT_DEVICE_FATAL, 0);
    for (uint32_t i = kFirstQp; i < kMaxQps; i++)
        if (station->qps[i].use != QpUse::free) fail_qp(by, station, i);
}

void overrun(Context& by, StationMap& station, uint32_t index) {
    CqShared& cq = station->cqs[index];
    if (!cq.overrun.exchange(true)) push_async(by, station->index, IBV_EVENT_CQ_ERR, cq.cookie);
}

void apply(Context& by, StationMap& station, const Fault& fault) {
    if (fault.kind == Kind::down || fault.kind == Kind::up)
        return switch_ports(by, station->mac, fault.kind == Kind::up);
    if (fault.kind == Kind::fatal) return lose_device(by, station);
    for (uint32_t i = kFirstQp; i < kMaxQps; i++) {
        QpShared& qp = station->qps[i];
        if (qp.use != QpUse::raw) continue;
        if (fault.kind == Kind::overrun)
            overrun(by, station, fault.send ? qp.send_cq : qp.recv_cq);
        else
            (fault.send ? qp.fail_send : qp.fail_recv) = fault.status;
    }
}

}  // namespace

unsigned inject_fault(Wire& wire, const std::string& who, std::span<const std::string> what,
                      std::string* error) {
    const Fault fault = parse(what);
    if (fault.kind == Kind::none) {
        *error = "not a fault";
        return 0;
    }
    auto by = std::make_unique<Context>();  // of nobody's device: it carries out
    by->wire = &wire;
    unsigned met = 0;
    for (uint32_t i = 0; i < kMaxStations; i++) {
        StationMap* station = wire.station(i);
        if (!station || !fits(station->station(), who)) continue;
        apply(*by, *station, fault);
        met++;
    }
    if (met == 0) *error = "nobody on the wire has opened " + who;
    return met;
}

}  // namespace softhca
