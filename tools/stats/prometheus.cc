// --prometheus: the text exposition format, version 0.0.4. Counters are totals since the process started: a viewer's zeroes
// (-z) do not show here.
#include <fmt/format.h>

#include <functional>

#include "stats/fields.h"
#include "stats/views.h"

namespace vma::stats {
namespace {

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + "\"";
}

std::string process_labels(const Process& p) {
    return fmt::format("pid=\"{}\",program={}", p.pid, quoted(p.page.program));
}

std::string socket_labels(const Process& p, const SocketView& v) {
    const SocketIdentity& id = v.row.id;
    return fmt::format("{},fd=\"{}\",protocol=\"{}\",local=\"{}\",remote=\"{}\"", process_labels(p),
                       id.fd, v.protocol, endpoint_text(v.local),
                       v.remote.port ? endpoint_text(v.remote) : "");
}

std::string ring_labels(const Process& p, size_t i) {
    const RingRow& ring = p.page.rings[i];
    return fmt::format("{},ring=\"{}\",kind={},interface={}", process_labels(p), i,
                       quoted(printable(ring.id.kind, sizeof ring.id.kind)),
                       quoted(printable(ring.id.interface, sizeof ring.id.interface)));
}

void head(std::string& out, const std::string& name, const char* type, const char* help) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

// One metric for each field; each(emit) calls emit(labels, numbers) for each thing that has them.
template <class Numbers, class Each>
void metrics(std::string& out, const char* prefix, std::span<const Field<Numbers>> fields,
             Each&& each) {
    for (const Field<Numbers>& f : fields) {
        const std::string name =
            fmt::format("vma_{}_{}{}", prefix, f.name, f.counter ? "_total" : "");
        head(out, name, f.counter ? "counter" : "gauge", f.help);
        each([&](const std::string& labels, const Numbers& n) {
            out += fmt::format("{}{{{}}} {}\n", name, labels, n.*f.value);
        });
    }
}

// Cumulative buckets at the powers of two from a microsecond on, in seconds.
void histogram(std::string& out, const char* name, const std::string& labels, const Histogram& h) {
    uint64_t seen = 0;
    unsigned i = 0;
    for (uint64_t edge = 1024; edge <= uint64_t(1) << 34; edge *= 2) {
        for (; i < Histogram::kBuckets && Histogram::floor_of(i) < edge; i++) seen += h.n[i];
        out +=
            fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, double(edge) / 1e9, seen);
    }
    out += fmt::format("{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, h.count());
    out += fmt::format("{}_sum{{{}}} {}\n", name, labels, double(h.sum) / 1e9);
    out += fmt::format("{}_count{{{}}} {}\n", name, labels, h.count());
}

}  // namespace

std::string to_prometheus(const std::vector<Process>& processes) {
    std::string out;
    const auto each_socket = [&](auto&& fn) {
        for (const Process& p : processes)
            for (const SocketView& v : p.sockets) fn(p, v);
    };
    head(out, "vma_socket_info", "gauge", "who serves the socket, and why; always 1");
    each_socket([&](const Process& p, const SocketView& v) {
        const SocketIdentity& id = v.row.id;
        out += fmt::format("vma_socket_info{{{},path=\"{}\",reason=\"{}\",state=\"{}\"}} 1\n",
                           socket_labels(p, v), path_name(id.path),
                           v.in_page ? reason_name(id.reason) : "unseen", v.tcp_state);
    });
    metrics(out, "socket", socket_fields(), [&](auto&& emit) {
        each_socket([&](const Process& p, const SocketView& v) {
            if (v.in_page) emit(socket_labels(p, v), v.row.numbers);
        });
    });
    for (const TcpField& f : tcp_fields()) {
        const std::string name = fmt::format("vma_tcp_{}", f.name);
        head(out, name, "gauge", f.help);
        each_socket([&](const Process& p, const SocketView& v) {
            if (v.row.tcp.here)
                out += fmt::format("{}{{{}}} {}\n", name, socket_labels(p, v), f.value(v.row.tcp));
        });
    }
    const auto each_ring = [&](auto&& fn) {
        for (const Process& p : processes)
            for (size_t i = 0; i < p.page.rings.size(); i++)
                if (p.page.rings[i].in_use) fn(p, i);
    };
    metrics(out, "ring", ring_fields(), [&](auto&& emit) {
        each_ring(
            [&](const Process& p, size_t i) { emit(ring_labels(p, i), p.page.rings[i].numbers); });
    });
    head(out, "vma_ring_drops_total", "counter", "frames and datagrams dropped, by reason");
    each_ring([&](const Process& p, size_t i) {
        for (unsigned k = 1;
             k < std::min<uint32_t>(p.page.header.drop_reasons, unsigned(DropReason::count)); k++)
            out += fmt::format("vma_ring_drops_total{{{},reason=\"{}\"}} {}\n", ring_labels(p, i),
                               drop_name(DropReason(k)), p.page.rings[i].drops[k]);
    });
    metrics(out, "wait", wait_fields(), [&](auto&& emit) {
        for (const Process& p : processes)
            for (const WaitRow& w : p.page.waits)
                emit(fmt::format("{},place=\"{}\"", process_labels(p), wait_name(w.id)), w.numbers);
    });
    for (const bool receive : {true, false}) {
        const char* name =
            receive ? "vma_socket_receive_latency_seconds" : "vma_socket_send_latency_seconds";
        head(out, name, "histogram",
             receive ? "from a frame's arrival to the read that returned it"
                     : "from a send call to the ring's having its frame");
        for (const Process& p : processes) {
            const LatencyByFd times = latency_by_fd(p);
            for (const SocketView& v : p.sockets)
                if (const auto l = times.find(v.row.id.fd); v.in_page && l != times.end())
                    histogram(out, name, socket_labels(p, v),
                              receive ? l->second->receive : l->second->send);
        }
    }
    return out;
}

}  // namespace vma::stats
