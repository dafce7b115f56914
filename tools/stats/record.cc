#include "stats/record.h"

#include <errno.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

namespace vma::stats {
namespace {

using Json = nlohmann::json;

constexpr double kWidth = 640, kHeight = 140, kLeft = 70, kBottom = 20;
constexpr const char* kColours[] = {"#2563a8", "#c2571a", "#2f8050", "#8a3d8f"};

struct Point {
    double time, value;
};
struct Series {
    std::string name;
    std::vector<Point> points;
};

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text)
        out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
    return out;
}

std::string number_text(double n) {
    static constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
    unsigned unit = 0;
    for (; n >= 1000 && unit + 1 < std::size(kUnits); unit++) n /= 1000;
    return fmt::format("{:.4g}{}", n, kUnits[unit]);
}

// A chart of lines over time; "" when there is nothing but zero to draw.
std::string chart(const std::string& title, const std::string& unit,
                  const std::vector<Series>& all) {
    double most = 0, begin = INFINITY, end = 0;
    for (const Series& s : all)
        for (const Point& p : s.points) {
            most = std::max(most, p.value);
            begin = std::min(begin, p.time);
            end = std::max(end, p.time);
        }
    if (most <= 0 || end <= begin) return "";
    std::string out =
        fmt::format("<figure><figcaption>{} <small>({})</small>", escaped(title), escaped(unit));
    for (size_t i = 0; i < all.size(); i++)
        out += fmt::format(" <span style=\"color:{}\">&#9644; {}</span>",
                           kColours[i % std::size(kColours)], escaped(all[i].name));
    out += fmt::format("</figcaption><svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\">", kWidth,
                       kHeight + kBottom, kWidth);
    for (int line = 0; line <= 2; line++) {
        const double y = 4 + (kHeight - 8) * line / 2;
        out += fmt::format(
            "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/><text x=\"{}\" "
            "y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
            kLeft, kWidth, y, y, kLeft - 6, y + 4, number_text(most * (2 - line) / 2));
    }
    for (size_t i = 0; i < all.size(); i++) {
        out += fmt::format("<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"{}\" points=\"",
                           kColours[i % std::size(kColours)]);
        for (const Point& p : all[i].points)
            out += fmt::format("{:.1f},{:.1f} ",
                               kLeft + (kWidth - kLeft) * (p.time - begin) / (end - begin),
                               4 + (kHeight - 8) * (1 - p.value / most));
        out += "\"/>";
    }
    out += fmt::format(
        "<text x=\"{}\" y=\"{}\">0 s</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">"
        "{:.0f} s</text></svg></figure>\n",
        kLeft, kHeight + 14, kWidth, kHeight + 14, end - begin);
    return out;
}

// Bars over a logarithmic axis of time.
std::string bars(const std::string& title, const Json& times) {
    const Json& buckets = times.at("buckets");
    if (buckets.empty()) return "";
    const auto position = [](double ns) { return std::log2(std::max(1.0, ns)); };
    const double begin = position(buckets.front().at(0).get<double>()),
                 end = position(buckets.back().at(0).get<double>() * 1.125) + 0.2;
    double most = 0;
    for (const Json& b : buckets) most = std::max(most, b.at(1).get<double>());
    std::string out = fmt::format(
        "<figure><figcaption>{} <small>({} times; p50 {} ns, p99 {} ns, p99.9 {} ns, max {} "
        "ns)</small></figcaption><svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\">",
        escaped(title), times.at("count").get<uint64_t>(), times.at("p50").get<uint64_t>(),
        times.at("p99").get<uint64_t>(), times.at("p999").get<uint64_t>(),
        times.at("max").get<uint64_t>(), kWidth, kHeight + kBottom, kWidth);
    for (const Json& b : buckets) {
        const double at = b.at(0).get<double>(), count = b.at(1).get<double>();
        const double x = (position(at) - begin) / (end - begin) * kWidth;
        const double next = (position(at * 1.125) - begin) / (end - begin) * kWidth;
        const double h = std::max(1.0, kHeight * count / most);
        out += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
            "fill=\"{}\"><title>{} ns: {}</title></rect>",
            x, kHeight - h, std::max(1.0, next - x - 0.5), h, kColours[0], at, count);
    }
    for (double mark = 1; mark < 1e11; mark *= 10) {  // NOLINT(cert-flp30-c): exact
        const double x = (position(mark) - begin) / (end - begin) * kWidth;
        if (x >= 0 && x < kWidth - 30)
            out += fmt::format("<text x=\"{:.1f}\" y=\"{}\">{}s</text>", x, kHeight + 14,
                               mark < 1e3   ? fmt::format("{:.0f} n", mark)
                               : mark < 1e6 ? fmt::format("{:.0f} u", mark / 1e3)
                               : mark < 1e9 ? fmt::format("{:.0f} m", mark / 1e6)
                                            : fmt::format("{:.0f} ", mark / 1e9));
    }
    return out + "</svg></figure>\n";
}

struct Look {
    double time;
    Json thing;  // a socket or ring
};

// A rate for each pair of looks.
Series rate(const std::string& name, const std::vector<Look>& looks,
            const std::function<double(const Json&)>& total) {
    Series out{name, {}};
    for (size_t i = 1; i < looks.size(); i++) {
        const double seconds = looks[i].time - looks[i - 1].time;
        if (seconds > 0)
            out.points.push_back(
                {looks[i].time,
                 std::max(0.0, total(looks[i].thing) - total(looks[i - 1].thing)) / seconds});
    }
    return out;
}

Series level(const std::string& name, const std::vector<Look>& looks,
             const std::function<double(const Json&)>& value) {
    Series out{name, {}};
    for (const Look& look : looks) out.points.push_back({look.time, value(look.thing)});
    return out;
}

std::function<double(const Json&)> at(const char* path) {
    const Json::json_pointer pointer(path);
    return [pointer](const Json& j) {
        return j.contains(pointer) && j.at(pointer).is_number() ? j.at(pointer).get<double>() : 0.0;
    };
}

std::string socket_section(const std::vector<Look>& looks) {
    const Json& last = looks.back().thing;
    const auto word = [&](const char* name) {
        const Json value = last.value(name, Json());
        return value.is_string() ? escaped(value.get<std::string>()) : std::string("*");
    };
    std::string out = fmt::format(
        "<h3>fd {} {} {} &#8594; {}</h3><p>{}: {}</p>\n", last.value("fd", -1), word("protocol"),
        word("local"), word("remote"), word("path"),
        last.value("path", "") == "offloaded" ? "by a ring"
                                              : word("meaning") + ". " + word("advice"));
    out += chart("bytes", "a second",
                 {rate("received", looks, at("/counters/rx_bytes")),
                  rate("sent", looks, at("/counters/tx_bytes"))});
    out += chart("calls", "a second",
                 {rate("receive", looks, at("/counters/rx_packets")),
                  rate("send", looks, at("/counters/tx_packets"))});
    out += chart("segments sent again", "a second",
                 {rate("sent again", looks, at("/counters/tx_retransmits"))});
    out += chart(
        "round trip", "microseconds",
        {level("smoothed", looks, at("/tcp/rtt")), level("least", looks, at("/tcp/min_rtt"))});
    out += chart("congestion window", "segments", {level("cwnd", looks, at("/tcp/snd_cwnd"))});
    if (last.contains("latency_ns")) {
        out += chart("arrival to read", "nanoseconds",
                     {level("p50", looks, at("/latency_ns/receive/p50")),
                      level("p99", looks, at("/latency_ns/receive/p99"))});
        out += bars("arrival to read", last.at("latency_ns").at("receive"));
        out += bars("send call to ring", last.at("latency_ns").at("send"));
    }
    return out;
}

std::string ring_section(const std::string& name, const std::vector<Look>& looks) {
    std::string out = fmt::format("<h3>ring {}</h3>\n", escaped(name));
    out += chart("bytes", "a second",
                 {rate("received", looks, at("/rx_bytes")), rate("sent", looks, at("/tx_bytes"))});
    out += chart("frames", "a second",
                 {rate("received", looks, at("/rx_frames")), rate("sent", looks, at("/tx_frames")),
                  rate("dropped", looks, at("/rx_dropped"))});
    out += chart("packet buffers", "in use", {level("in use", looks, at("/pool_in_use"))});
    return out;
}

struct Session {
    std::string heading;
    std::map<uint64_t, std::vector<Look>> sockets;  // by cookie
    std::map<std::string, std::vector<Look>> rings;
};

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>libvma session</title><style>
body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:720px;padding:0 1em;color:#222}
figure{margin:0 0 1.2em}figcaption{margin-bottom:.2em}svg{max-width:100%;height:auto}
svg text{font-size:11px;fill:#666}small{color:#666}h2{border-bottom:1px solid #ccc}
</style></head><body>
)";

}  // namespace

int run_record(const Selection& which, const std::string& file, double interval_s, unsigned cycles,
               bool wait) {
    std::ofstream out(file);
    if (!out) {
        say(fmt::format("{}: {}", file, std::strerror(errno)));
        return 1;
    }
    using std::chrono::steady_clock;
    const auto interval = std::chrono::duration_cast<steady_clock::duration>(
        std::chrono::duration<double>(interval_s));
    unsigned looks = 0;
    // An interval from look to look, however long a look takes; one that is late is made up for by none.
    for (auto next = steady_clock::now(); cycles == 0 || looks < cycles;) {
        std::this_thread::sleep_until(next);
        next = std::max(next + interval, steady_clock::now());
        const auto processes = look_at_all(which, true, list_bit(SegmentKind::latencies));
        if (processes.empty() && looks == 0 && wait) continue;
        if (processes.empty()) break;
        looks++;
        const double now =
            std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
                .count();
        out << Json({{"time", now}, {"look", Json::parse(to_json(processes))}}).dump() << "\n"
            << std::flush;
    }
    say(fmt::format("{} looks in {}", looks, file));
    return looks ? 0 : 1;
}

bool make_report(const std::string& recording, std::string* html, std::string* why) {
    std::map<uint64_t, Session> sessions;  // by pid
    std::istringstream in(recording);
    size_t looks = 0;
    for (std::string line; std::getline(in, line);) {
        const Json entry = Json::parse(line, nullptr, false);
        if (!entry.is_object() || !entry.contains("time") || !entry["time"].is_number() ||
            !entry.contains(Json::json_pointer("/look/processes"))) {
            *why = fmt::format("line {} is not of a recording", looks + 1);
            return false;
        }
        looks++;
        for (const Json& p : entry.at("look").at("processes")) {
            Session& s = sessions[p.value("pid", uint64_t(0))];
            s.heading = fmt::format("{} (pid {})", p.value("program", ""), p.value("pid", 0));
            for (const Json& socket : p.value("sockets", Json::array()))
                if (socket.contains("counters"))
                    s.sockets[socket.value("cookie", uint64_t(0))].push_back(
                        {entry["time"], socket});
            for (const Json& ring : p.value("rings", Json::array()))
                s.rings[ring.value("interface", "")].push_back({entry["time"], ring});
        }
    }
    if (looks < 2) {
        *why = "a report needs two looks at least";
        return false;
    }
    *html = kHead;
    for (const auto& [pid, session] : sessions) {
        *html += fmt::format("<h2>{}</h2>\n", escaped(session.heading));
        for (const auto& [name, of_ring] : session.rings) *html += ring_section(name, of_ring);
        for (const auto& [cookie, of_socket] : session.sockets) *html += socket_section(of_socket);
    }
    *html += "</body></html>\n";
    return true;
}

int run_report(const std::string& recording, const std::string& page) {
    std::ifstream in(recording);
    std::stringstream text;
    text << in.rdbuf();
    std::string html, why;
    if (!in || !make_report(text.str(), &html, &why)) {
        say(fmt::format("{}: {}", recording, in ? why : std::strerror(errno)));
        return 1;
    }
    std::ofstream out(page);
    if (!(out << html << std::flush)) {
        say(fmt::format("{}: {}", page, std::strerror(errno)));
        return 1;
    }
    return 0;
}

}  // namespace vma::stats
