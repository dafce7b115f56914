#include "script/tcp/script.h"

#include <errno.h>

#include <cmath>
#include <cstdlib>
#include <sstream>

namespace vma::tcp {

namespace {

char pattern_at(uint64_t offset) { return char('a' + offset % 23); }
std::string pattern(uint64_t offset, size_t n) {
    std::string s(n, 0);
    for (size_t i = 0; i < n; ++i) s[i] = pattern_at(offset + i);
    return s;
}

struct FlagLetter {
    char letter;
    uint8_t bit;
};
constexpr FlagLetter kLetters[] = {{'S', kSyn}, {'F', kFin}, {'R', kRst}, {'P', kPsh},
                                   {'A', kAck}, {'U', kUrg}, {'E', kEce}, {'C', kCwr}};

// Any other eight bytes.
Cookie cookie_of(int64_t n) {
    Cookie c;
    c.len = kCookieBytes;
    for (unsigned i = 0; i < 8; ++i) c.bytes[i] = uint8_t(n + i);
    return c;
}

bool parse_flags(const std::string& text, uint8_t& flags) {
    flags = 0;
    for (char c : text) {
        bool known = false;
        for (const auto& l : kLetters)
            if (l.letter == c) flags |= l.bit, known = true;
        if (!known) return false;
    }
    return !text.empty();
}

std::string flag_text(uint8_t flags) {
    std::string s;
    for (const auto& l : kLetters)
        if (flags & l.bit) s += l.letter;
    return s;
}

struct EventName {
    const char* name;
    uint32_t bit;
};
constexpr EventName kEvents[] = {
    {"readable", kReadable},     {"writable", kWritable}, {"connected", kConnected},
    {"peerclosed", kPeerClosed}, {"failed", kFailed},     {"releasable", kReleasable},
    {"timewait", kTimeWait},     {"urgent", kUrgent},     {"allacked", kAllAcked},
};

struct ErrnoName {
    const char* name;
    int value;
};
constexpr ErrnoName kErrnos[] = {{"0", 0},
                                 {"ECONNRESET", ECONNRESET},
                                 {"ECONNREFUSED", ECONNREFUSED},
                                 {"ETIMEDOUT", ETIMEDOUT},
                                 {"EHOSTUNREACH", EHOSTUNREACH},
                                 {"EPIPE", EPIPE}};

}  // namespace

Duration parse_time(const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const std::string unit = end;
    const double scale = unit == "s" ? 1e9 : unit == "ms" ? 1e6 : unit == "us" ? 1e3 : 0;
    if (scale == 0) ADD_FAILURE() << "not a time: " << text;
    return Duration::nanos(int64_t(std::llround(value * scale)));
}

ScriptLine ScriptLine::parse(int number, const std::string& text) {
    ScriptLine line;
    line.number = number;
    std::istringstream in(text.substr(0, text.find('#')));
    in >> line.verb;
    for (std::string w; in >> w;) {
        const size_t eq = w.find('=');
        if (eq == std::string::npos)
            line.words.push_back(w);
        else
            line.pairs[w.substr(0, eq)] = w.substr(eq + 1);
    }
    return line;
}

bool ScriptLine::word(const std::string& w) {
    for (auto it = words.begin(); it != words.end(); ++it) {
        if (*it != w) continue;
        words.erase(it);
        return true;
    }
    return false;
}

std::optional<std::string> ScriptLine::text(const std::string& key) {
    const auto it = pairs.find(key);
    if (it == pairs.end()) return std::nullopt;
    std::string value = it->second;
    pairs.erase(it);
    return value;
}

std::optional<int64_t> ScriptLine::number_of(const std::string& key) {
    const auto value = text(key);
    if (!value) return std::nullopt;
    char* end = nullptr;
    const int64_t n = std::strtoll(value->c_str(), &end, 0);
    if (*end != 0 || value->empty()) ADD_FAILURE() << "line " << number << ": not a number " << key;
    return n;
}

std::optional<Duration> ScriptLine::time_of(const std::string& key) {
    const auto value = text(key);
    if (!value) return std::nullopt;
    return parse_time(*value);
}

void Script::fail(const std::string& what) {
    ADD_FAILURE() << "line " << line_ << ": " << what;
    broken_ = true;
}

std::string Script::describe(const Seg& s) const {
    std::ostringstream o;
    o << flag_text(s.flags) << " seq=" << s.seq - iss_ << " len=" << s.text.size()
      << " ack=" << s.ack - kPeerIss << " win=" << s.wnd;
    for (unsigned i = 0; i < s.opt.sack_count; ++i)
        o << (i ? "," : " sack=") << s.opt.sack[i].left.v - kPeerIss << "-"
          << s.opt.sack[i].right.v - kPeerIss;
    return o.str();
}

void Script::must_be_quiet(const char* before) {
    if (!sent_.empty())
        fail(std::string("unexpected before ") + before + ": " + describe(sent_.front()));
}

OpenParams Script::params() {
    OpenParams p;
    p.local = {IpAddr::v4(10, 0, 0, 1), 4000};
    p.remote = {IpAddr::v4(10, 0, 0, 2), 80};
    p.iss = {kOurIss};
    p.memory = world_.memory.get();
    p.secret = &secret_;
    p.fast_open = fast_open_;
    p.no_cookie = no_cookie_;
    p.cookie = cookie_;
    p.fast_open_room = 1000;
    if (keys_.count > 0) p.fast_open_keys = &keys_;
    return p;
}

void Script::run(const std::string& text) {
    cfg_.timestamps = false;
    cfg_.receive_buffer = cfg_.receive_buffer_max = 60000;
    std::istringstream in(text);
    std::string raw;
    int number = 0;
    bool titled = false;
    while (!broken_ && std::getline(in, raw)) {
        line_ = ++number;
        ScriptLine line = ScriptLine::parse(number, raw);
        if (line.verb.empty()) continue;
        if (!titled) {
            titled = true;
            if (line.verb != "title" || line.words.empty() ||
                (line.words[0] != "RFC" && line.words[0].rfind("Linux", 0) != 0))
                fail("the first line is `title RFC ...` or `title Linux ...`");
            continue;
        }
        step(line);
        if (!broken_ && (!line.pairs.empty() || !line.words.empty()))
            fail("left over: " +
                 (line.words.empty() ? line.pairs.begin()->first : line.words.front()));
    }
    if (!titled) fail("no title");
    if (!broken_) must_be_quiet("the end");
    release(t_);
}

void Script::step(ScriptLine& line) {
    if (line.verb == "in") {
        must_be_quiet("in");
        receive(incoming(line));
    } else if (line.verb == "out") {
        expect_out(line);
    } else if (line.verb == "quiet") {
        must_be_quiet("quiet");
        const std::string time = line.words.empty() ? "0ms" : line.words[0];
        line.words.clear();
        pass(parse_time(time), true);
        must_be_quiet("the end of quiet");
    } else if (line.verb == "wait") {
        const std::string time = line.words.empty() ? "" : line.words[0];
        line.words.clear();
        pass(parse_time(time), false);
    } else if (line.verb == "sent") {
        const size_t n = line.words.empty() ? 0 : size_t(std::atoi(line.words[0].c_str()));
        line.words.clear();
        if (sent_.size() != n) fail(std::to_string(sent_.size()) + " segments were sent");
        sent_.clear();
    } else if (line.verb == "drain") {
        sent_.clear();
    } else if (line.verb == "config") {
        config(line);
    } else if (line.verb == "set") {
        poke(line);
    } else if (line.verb == "established" || line.verb == "accepted") {
        established(line, line.verb == "established");
    } else if (line.verb == "expect") {
        expect(line);
    } else if (line.verb == "event") {
        events(line);
    } else if (!call(line)) {
        fail("unknown verb " + line.verb);
    }
}

// ---- what the application does

bool Script::call(ScriptLine& line) {
    Actions a;
    const uint32_t n = line.words.empty() ? 0 : uint32_t(std::atoi(line.words[0].c_str()));
    if (line.verb == "connect") {
        // fast: asks for a cookie; cookie=N: has one; nocookie: sends without. text=N is written before the SYN leaves.
        fast_open_ = line.word("fast");
        no_cookie_ = line.word("nocookie");
        if (const auto v = line.number_of("cookie")) cookie_ = cookie_of(*v);
        fast_open_ = fast_open_ || no_cookie_ || cookie_.len > 0;
        connect(t_, params(), cfg_, now_);
        if (const auto text = line.number_of("text")) {
            const std::string bytes = pattern(written_, size_t(*text));
            written_ += vma::tcp::write(t_, bytes.data(), bytes.size(), now_, a);
        }
    } else if (line.verb == "listen") {
        listening_ = true;
        listener_.backlog = line.get("backlog", 16);
        listener_.accept_queue = line.get("waiting", 0);
        listener_.half_open = line.get("halfopen", 0);
        listener_.max_half_open = line.get("maxhalf", 1024);
        listener_.fast_open_limit = line.get("fast", 0);
        listener_.fast_open = line.get("fastpending", 0);
        if (listener_.fast_open_limit > 0) keys_ = {2, {{1, 2}, {3, 4}}};
    } else if (line.verb == "write") {
        line.words.clear();
        const std::string bytes = pattern(written_, n);
        const size_t took = vma::tcp::write(t_, bytes.data(), n, now_, a);
        written_ += took;
        const size_t want = size_t(line.number_of("takes").value_or(n));
        if (took != want) fail("write took " + std::to_string(took));
    } else if (line.verb == "read") {
        line.words.clear();
        std::string bytes(n, 0);
        bytes.resize(vma::tcp::read(t_, bytes.data(), n, now_, a));
        const size_t want = size_t(line.number_of("gets").value_or(n));
        if (bytes.size() != want) fail("read got " + std::to_string(bytes.size()));
        if (bytes != pattern(read_, bytes.size())) fail("read got other bytes");
        read_ += bytes.size();
    } else if (line.verb == "urgent") {
        mark_urgent(t_);
    } else if (line.verb == "shutdown") {
        shutdown_write(t_, now_, a);
    } else if (line.verb == "too_big") {
        const bool believed = path_too_big(t_, Seq{iss_} + line.get("seq", 1),
                                           line.get("mtu", 1500), line.get("headers", 40), a);
        if (believed == line.word("ignored")) fail("the quoted number was judged otherwise");
    } else if (line.verb == "unreachable") {
        const bool believed = path_error(t_, Seq{iss_} + line.get("seq", 1), EHOSTUNREACH, a);
        if (believed == line.word("ignored")) fail("the quoted number was judged otherwise");
    } else if (line.verb == "shutdown_read") {
        shutdown_read(t_);
    } else if (line.verb == "close") {
        close(t_, now_, a);
    } else if (line.verb == "abort") {
        abort(t_, 0, a);
    } else {
        return false;
    }
    note(a);
    collect();
    return true;
}

void Script::config(ScriptLine& line) {
    TcpConfig& c = t_.state == State::CLOSED ? cfg_ : t_.cfg;
    auto flag = [&](const char* key, bool& to) {
        if (const auto v = line.number_of(key)) to = *v != 0;
    };
    auto number = [&](const char* key, auto& to) {
        if (const auto v = line.number_of(key)) to = std::remove_reference_t<decltype(to)>(*v);
    };
    auto time = [&](const char* key, Duration& to) {
        if (const auto v = line.time_of(key)) to = *v;
    };
    flag("timestamps", c.timestamps);
    flag("scaling", c.window_scaling);
    flag("sack", c.sack);
    flag("nodelay", c.nodelay);
    flag("cork", c.cork);
    const bool delayed = !c.quickack;
    flag("quickack", c.quickack);
    flag("keepalive", c.keepalive);
    flag("idle_restart", c.slow_start_after_idle);
    flag("tail_probe", c.tail_probe);
    flag("frto", c.frto);
    number("ecn", c.ecn);
    number("fastopen", c.fast_open);
    flag("quickack_always", c.quickack_always);
    number("quickack_bytes", c.quickack_bytes);
    number("notsent_lowat", c.notsent_lowat);
    flag("cookies", c.syn_cookies);
    number("mtu_probing", c.mtu_probing);
    time("probe_interval", c.probe_interval);
    number("defer_accept", c.defer_accept);
    number("sndbuf_max", c.send_buffer_max);
    number("retries1", c.retries1);
    number("mss", c.mss);
    number("maxseg", c.max_seg);
    number("gso", c.max_gso_bytes);
    number("sndbuf", c.send_buffer);
    number("rcvbuf", c.receive_buffer);
    number("rcvbuf_max", c.receive_buffer_max);
    number("clamp", c.window_clamp);
    number("syn_retries", c.syn_retries);
    number("synack_retries", c.synack_retries);
    number("retries2", c.retries2);
    number("orphan_retries", c.orphan_retries);
    number("keepalive_probes", c.keepalive_probes);
    number("quickack_segments", c.quickack_segments);
    number("pacing", c.pacing_rate);
    time("keepalive_idle", c.keepalive_idle);
    time("keepalive_interval", c.keepalive_interval);
    time("user_timeout", c.user_timeout);
    time("fin_timeout", c.fin_timeout);
    time("time_wait", c.time_wait);
    if (const auto cc = line.text("cc"))
        c.cc = *cc == "reno"   ? CcKind::newreno
               : *cc == "none" ? CcKind::none
               : *cc == "bbr"  ? CcKind::bbr
                               : CcKind::cubic;
    if (t_.state == State::CLOSED) return;
    Actions a;
    config_changed(t_, now_, a);
    if (delayed && t_.cfg.quickack) acknowledge_owed(t_, a);
    note(a);
    collect();
}

// State that would take long to reach by segments.
void Script::poke(ScriptLine& line) {
    if (const auto v = line.number_of("cwnd")) t_.cc.cwnd = uint32_t(*v);
    if (const auto v = line.number_of("ssthresh")) t_.cc.ssthresh = uint32_t(*v);
    if (const auto v = line.number_of("limit")) t_.out.limit = uint32_t(*v);
    if (const auto v = line.number_of("peer_ts")) peer_ts_ = uint32_t(*v);
    if (const auto v = line.number_of("win")) peer_window_ = uint32_t(*v);
    if (const auto v = line.number_of("waiting")) listener_.accept_queue = uint32_t(*v);
    if (const auto v = line.number_of("halfopen")) listener_.half_open = uint32_t(*v);
    if (const auto v = line.number_of("path_mss")) {
        Actions a;
        path_mss_changed(t_, uint16_t(*v), a);
        note(a);
        collect();
    }
    if (const auto v = line.time_of("rtt")) {
        t_.rtt = {};
        t_.rtt.sample(*v, now_);
    }
}

void Script::established(ScriptLine& line, bool active) {
    const uint32_t mss = line.get("mss", 1000), win = line.get("win", 60000);
    const bool sack = line.get("sack", 1) != 0, stamps = line.get("ts", 0) != 0;
    const auto scale = line.number_of("ws");
    const Duration rtt = line.time_of("rtt").value_or(Duration{0});
    cfg_.timestamps = peer_stamps_ = stamps;
    peer_window_ = win;
    Seg s;
    s.seq = kPeerIss;
    s.flags = active ? kSyn | kAck : kSyn;
    s.ack = active ? kOurIss + 1 : 0;
    s.wnd = uint16_t(win);
    s.opt.has_mss = true;
    s.opt.mss = uint16_t(mss);
    s.opt.sack_permitted = sack;
    if (line.word("ecn")) {
        cfg_.ecn = 1;
        s.flags |= active ? kEce : uint8_t(kEce | kCwr);
    }
    if (scale) {
        s.opt.has_wscale = true;
        s.opt.wscale = uint8_t(*scale);
    }
    if (active) {
        connect(t_, params(), cfg_, now_);
        collect();
    } else {
        listening_ = true;
        listener_.backlog = 16;
        receive(s);
    }
    if (sent_.size() != 1 || !(sent_.front().flags & kSyn)) return fail("no SYN came out");
    sent_.clear();
    now_ = now_ + rtt;
    if (!active) {
        s = {};
        s.seq = kPeerIss + 1;
        s.ack = kOurIss + 1;
        s.wnd = uint16_t(win);
    }
    receive(s);
    if (t_.state != State::ESTABLISHED) return fail("not established");
    if (sent_.size() != (active ? 1u : 0u)) return fail("handshake made other segments");
    sent_.clear();
    seen_ = 0;
}

// ---- segments in

Seg Script::incoming(ScriptLine& line) {
    Seg s;
    if (line.words.empty() || !parse_flags(line.words[0], s.flags)) {
        fail("flags expected");
        return s;
    }
    line.words.erase(line.words.begin());
    const bool syn = s.flags & kSyn;
    s.seq = kPeerIss + line.get("seq", syn ? 0 : uint32_t(t_.rcv.nxt.v - kPeerIss));
    const uint32_t len = line.get("len", 0);
    s.text = pattern(s.seq - kPeerIss - 1 + (syn ? 1 : 0), len);
    const bool embryo = listening_ && t_.state == State::CLOSED && !t_.memory;
    if (line.has("ack"))
        s.ack = iss_ + line.get("ack", 0);
    else if (s.flags & kAck)
        s.ack = embryo || t_.state == State::SYN_RECEIVED ? iss_ + 1 : t_.snd.una.v;
    s.wnd = uint16_t(line.get("win", peer_window_));
    s.urg = uint16_t(line.get("urg", 0));
    s.gso_size = uint16_t(line.get("gso", 0));
    s.opt.sack_permitted = line.word("sackok");
    if (line.word("ect")) s.ecn = 2;
    // A Fast Open cookie: N of the script's own, none (a request), `good` or `old` as our listener would have made it.
    if (const auto v = line.text("fo")) {
        Cookie c;
        if (*v == "good" || *v == "old")
            c = vma::tcp::make_cookie(keys_, *v == "old" ? 1 : 0, params().remote.addr,
                                      params().local.addr);
        else if (*v != "none")
            c = cookie_of(std::atoi(v->c_str()));
        s.opt.has_fast_open = true;
        s.opt.fast_open_len = c.len;
        s.opt.fast_open = c.bytes;
    }
    if (line.word("ce")) s.ecn = kEcnCe;
    if (const auto v = line.number_of("mss")) s.opt.has_mss = true, s.opt.mss = uint16_t(*v);
    if (const auto v = line.number_of("ws")) s.opt.has_wscale = true, s.opt.wscale = uint8_t(*v);
    if (const auto v =
            line.text("ts")) {  // value, echo defaults to our clock; "value/echo"; "none"
        if (*v != "none") {
            const size_t slash = v->find('/');
            s.opt.has_timestamps = true;
            s.opt.ts_val = uint32_t(std::strtoul(v->c_str(), nullptr, 0));
            if (slash != std::string::npos)
                s.opt.ts_ecr =
                    t_.ts.offset + uint32_t(std::strtoul(v->c_str() + slash + 1, nullptr, 0));
            else
                s.opt.ts_ecr = embryo ? our_stamp_ : t_.ts.value(now_);
        }
    } else if (peer_stamps_) {
        s.opt.has_timestamps = true;
        s.opt.ts_val = peer_ts_ + uint32_t(now_.ns / 1000000);
        s.opt.ts_ecr = t_.ts.value(now_);
    }
    if (const auto v = line.text("sack")) {
        std::istringstream in(*v);
        for (std::string block; std::getline(in, block, ',') && s.opt.sack_count < 4;) {
            const size_t dash = block.find('-');
            s.opt.sack[s.opt.sack_count++] = {
                {iss_ + uint32_t(std::atol(block.c_str()))},
                {iss_ + uint32_t(std::atol(block.c_str() + dash + 1))}};
        }
    }
    return s;
}

void Script::receive(Seg s) {
    if (peer_stamps_ && (s.flags & kSyn) && !s.opt.has_timestamps) {
        s.opt.has_timestamps = true;
        s.opt.ts_val = peer_ts_ + uint32_t(now_.ns / 1000000);
        s.opt.ts_ecr = (s.flags & kAck) ? t_.ts.value(now_) : 0;
    }
    SegView seg = in_seg(*world_.pool, s);
    Actions a;
    if (listening_ && t_.state == State::CLOSED) return to_listener(seg);
    segment_arrives(t_, seg, now_, a);
    note(a);
    collect();
}

void Script::to_listener(SegView& seg) {
    Actions a;
    if (!half_) {
        ListenVerdict v = on_syn(listener_, cfg_, seg, params(), now_, a);
        note(a);
        if (v.kind == ListenVerdict::fast_open) {
            Actions b;
            iss_ = v.record.iss.v;
            open_fast(t_, v.record, cfg_, *world_.memory, seg, v.newer, now_, b);
            note(b);
            return collect();
        }
        if (v.kind != ListenVerdict::half_open && v.kind != ListenVerdict::established) return;
        half_ = v.record;
        ++listener_.half_open;
        iss_ = half_->iss.v;
        if (v.kind == ListenVerdict::half_open) return;
    }
    a = {};
    const HalfOpenVerdict v = vma::tcp::segment_arrives(*half_, listener_, cfg_, seg, now_, a);
    note(a);
    if (v == HalfOpenVerdict::keep) return;
    if (v == HalfOpenVerdict::establish) establish(t_, *half_, cfg_, *world_.memory, now_);
    half_.reset();
    --listener_.half_open;
    if (v != HalfOpenVerdict::establish) return;
    ++listener_.accept_queue;
    Actions b;
    segment_arrives(t_, seg, now_, b);
    note(b);
    collect();
}

// ---- segments out

void Script::reply(const Actions& a) {
    if (!a.has_reply) return;
    sent_.push_back(out_seg(a.reply));
    if (a.reply.flags == (kSyn | kAck) || a.reply.flags == (kSyn | kAck | kEce)) {
        iss_ = a.reply.seq.v;
        if (a.reply.opt.has_timestamps) our_stamp_ = a.reply.opt.ts_val;
    }
}

void Script::collect() {
    SegmentPlan p;
    for (int i = 0; next_segment(t_, now_, p); ++i) {
        sent_.push_back(out_seg(p));
        if (i > 10000) return fail("output does not end");
    }
}

Instant Script::next_deadline() const {
    return half_ ? std::min(deadline(*half_), deadline(t_)) : deadline(t_);
}

void Script::pass(Duration d, bool stop_at_output) {
    const Instant end = now_ + d;
    for (int guard = 0; next_deadline() <= end; ++guard) {
        if (guard > 100000) return fail("a deadline makes no progress");
        now_ = std::max(now_, next_deadline());
        Actions a;
        if (half_ && deadline(*half_) <= now_) {
            if (deadline_reached(*half_, cfg_, now_, a) == HalfOpenVerdict::remove) half_.reset();
        } else {
            deadline_reached(t_, now_, a);
        }
        note(a);
        collect();
        if (stop_at_output && !sent_.empty()) return;
    }
    now_ = end;
}

void Script::expect_out(ScriptLine& line) {
    if (const auto after = line.time_of("after")) {
        must_be_quiet("out after=");
        const Instant began = now_;
        const Duration slack = line.time_of("slack").value_or(Duration::micros(1));
        pass(*after + slack, true);
        if (sent_.empty()) return fail("nothing was sent");
        if (now_ - began < *after - slack)
            return fail("sent after " + std::to_string((now_ - began).to_micros()) +
                        " us: " + describe(sent_.front()));
    }
    if (sent_.empty()) return fail("nothing was sent");
    const Seg got = sent_.front();
    sent_.pop_front();
    compare(line, got);
}

void Script::compare(ScriptLine& line, const Seg& got) {
    uint8_t flags = 0;
    if (line.words.empty() || !parse_flags(line.words[0], flags)) return fail("flags expected");
    line.words.erase(line.words.begin());
    const uint8_t compared = flags & kPsh ? 0xff : uint8_t(~kPsh);
    bool same = (got.flags & compared) == flags;
    auto number = [&](const char* key, int64_t value) {
        if (const auto v = line.number_of(key)) same = same && *v == value;
    };
    number("seq", int64_t(got.seq - iss_));
    number("ack", int64_t(got.ack - kPeerIss));
    same = same && (line.has("len") || flags & kRst || got.text.empty());
    number("len", int64_t(got.text.size()));
    number("win", got.wnd);
    number("urg", got.urg);
    number("gso", got.gso_size);
    number("mss", got.opt.has_mss ? got.opt.mss : -1);
    number("ws", got.opt.has_wscale ? got.opt.wscale : -1);
    number("ecr", got.opt.has_timestamps ? int64_t(got.opt.ts_ecr) : -1);
    if (const auto v = line.number_of("ts")) same = same && got.opt.has_timestamps == (*v != 0);
    if (const auto v = line.text("fo")) {
        const char* is = !got.opt.has_fast_open  ? "no"
                         : got.opt.fast_open_len ? "cookie"
                                                 : "request";
        same = same && *v == is;
    }
    if (const auto v = line.number_of("sackok")) same = same && got.opt.sack_permitted == (*v != 0);
    if (const auto v = line.number_of("again")) same = same && got.retransmission == (*v != 0);
    if (line.word("nopush")) same = same && !(got.flags & kPsh);
    if (line.word("ect")) same = same && got.ecn == 2;
    if (line.word("not-ect")) same = same && got.ecn == 0;
    if (line.word("probe")) same = same && got.probe;
    if (const auto v = line.text("sack")) {
        std::ostringstream o;
        for (unsigned i = 0; i < got.opt.sack_count; ++i)
            o << (i ? "," : "") << got.opt.sack[i].left.v - kPeerIss << "-"
              << got.opt.sack[i].right.v - kPeerIss;
        same = same && (*v == "none" ? got.opt.sack_count == 0 : *v == o.str());
    }
    if (!same) return fail("sent " + describe(got));
    const uint32_t first = got.seq - iss_ - (got.has(kSyn) ? 0 : 1);
    if (!got.text.empty() && got.text != pattern(first, got.text.size()))
        fail("other bytes were sent");
}

// ---- state

void Script::expect(ScriptLine& line) {
    auto number = [&](const char* key, int64_t value) {
        if (const auto v = line.number_of(key))
            if (*v != value) fail(std::string(key) + " is " + std::to_string(value));
    };
    auto text = [&](const char* key, const std::string& value) {
        if (const auto v = line.text(key))
            if (*v != value) fail(std::string(key) + " is " + value);
    };
    static const char* const kTimers[] = {"none", "rto", "persist", "tlp", "reorder"};
    static const char* const kRecovery[] = {"open", "cwr", "fast", "timeout"};
    std::string error = std::to_string(error_);
    for (const auto& e : kErrnos)
        if (e.value == error_) error = e.name;
    text("state", state_name(t_.state));
    text("error", error);
    text("timer", kTimers[unsigned(t_.timers.kind)]);
    text("recovery", kRecovery[unsigned(t_.loss.state)]);
    number("halfopen", half_ ? 1 : 0);
    number("cwnd", t_.cc.cwnd);
    number("ssthresh", t_.cc.ssthresh);
    number("flight", t_.flight());
    number("pipe", t_.board.pipe(t_.snd.una, t_.snd.nxt));
    number("sacked", t_.board.sacked);
    number("lost", t_.board.lost);
    number("mss", t_.snd.mss);
    number("wnd", t_.snd.wnd);
    number("rcvwnd", t_.rcv.wnd());
    number("rcvbuf", t_.rcv.buffer);
    number("limit", t_.out.limit);
    number("unread", t_.in.bytes);
    number("unacked", t_.out.bytes);
    number("ooo", t_.ooo.bytes);
    number("timeouts", t_.count.timeouts);
    number("retransmits", t_.count.retransmits);
    number("dsacks", t_.count.dsacks_in);
    number("undos", t_.count.undos);
    number("probes", t_.count.tail_probes);
    number("spurious", t_.count.spurious_timeouts);
    number("steps", t_.loss.rack.steps);
    number("reordering", t_.loss.rack.reordering);
    number("reorderings", t_.loss.rack.reorderings);
    number("ecn", t_.ecn.on ? 1 : 0);
    number("cookies_taken", int64_t(listener_.cookies_taken));
    number("cookies_wrong", int64_t(listener_.cookies_wrong));
    number("sackok", t_.loss.sack_ok ? 1 : 0);
    number("snd_wscale", t_.snd.wscale);
    number("black_holes", t_.count.black_holes);
    number("timeout_errno", t_.soft_error);
    const Numbers n = numbers(t_, now_);
    number("ca_state", n.ca_state);
    number("busy_ms", int64_t(n.busy_us / 1000));
    number("rwnd_limited_ms", int64_t(n.rwnd_limited_us / 1000));
    number("sndbuf_limited_ms", int64_t(n.sndbuf_limited_us / 1000));
    number("delivery_rate", int64_t(n.delivery_rate));
    number("total_rto", n.total_rto);
    number("bytes_acked", int64_t(n.bytes_acked));
    number("bytes_retrans", int64_t(n.bytes_retrans));
    number("retries", t_.timers.retries);
    number("challenges", t_.count.challenge_acks);
    number("paws", t_.count.paws_drops);
    number("backoff", t_.timers.backoff);
    number("synroom", t_.fast_open.room);
    number("syndata", n.syn_data ? 1 : 0);
    number("fofail", n.fast_open_fail);
    number("fonews", t_.fast_open.news ? int(t_.fast_open.cookie.len) : 0);
    number("fastopens", int64_t(listener_.fast_opens));
    number("fastwrong", int64_t(listener_.fast_open_wrong));
    number("fastfull", int64_t(listener_.fast_open_full));
    number("probes_lost", t_.count.size_probes_lost);
    number("size_probes", t_.count.size_probes);
    number("duplicates", t_.count.duplicates_in);
    number("windows_shrunk", t_.count.windows_shrunk);
    number("sacks_wrong", t_.count.sacks_wrong);
    number("writable", writable(t_) ? 1 : 0);
    number("unsent", unsent_bytes(t_));
    number("rto_recoveries", n.rto_recoveries);
    number("rto_time_ms", n.rto_time_ms);
    number("data_segs_in", int64_t(n.data_segs_in));
    number("eof", at_eof(t_) ? 1 : 0);
    if (const auto v = line.time_of("rto"))
        if (*v != t_.rtt.rto) fail("rto is " + std::to_string(t_.rtt.rto.to_micros()) + " us");
    if (const auto v = line.time_of("srtt"))
        if (*v != t_.rtt.srtt) fail("srtt is " + std::to_string(t_.rtt.srtt.to_micros()) + " us");
}

void Script::events(ScriptLine& line) {
    for (const auto& e : kEvents) {
        if (line.word(e.name) && !(seen_ & e.bit)) fail(std::string("no event ") + e.name);
        if (line.word(std::string("no-") + e.name) && (seen_ & e.bit))
            fail(std::string("event ") + e.name);
    }
    seen_ = 0;
}

}  // namespace vma::tcp
