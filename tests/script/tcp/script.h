// Packet scripts: one connection in virtual time, driven line by line. README.md beside this file has the language.
#pragma once

#include <map>
#include <set>

#include "stack/isn.h"
#include "support/tcp_peer.h"

namespace vma::tcp {

// A line cut into its verb, plain words and key=value pairs. Asking for a pair takes it off, so that what is left over when
// the line is done is a mistake in the script.
struct ScriptLine {
    int number = 0;
    std::string verb;
    std::vector<std::string> words;
    std::map<std::string, std::string> pairs;

    static ScriptLine parse(int number, const std::string& text);
    bool has(const std::string& key) const { return pairs.count(key) != 0; }
    // A word that may stand in the line (`sackok`); takes it off.
    bool word(const std::string& w);
    std::optional<std::string> text(const std::string& key);
    std::optional<int64_t> number_of(const std::string& key);
    std::optional<Duration> time_of(const std::string& key);
    uint32_t get(const std::string& key, uint32_t otherwise) {
        return uint32_t(number_of(key).value_or(otherwise));
    }
};

Duration parse_time(const std::string& text);

class Script {
  public:
    // Runs the whole text; mistakes and unmet expectations are gtest failures with the line number.
    void run(const std::string& text);

  private:
    static constexpr uint32_t kOurIss = 0xfffff000, kPeerIss = 0x7ffffff0;

    void step(ScriptLine& line);
    bool call(ScriptLine& line);
    void config(ScriptLine& line);
    void poke(ScriptLine& line);
    void established(ScriptLine& line, bool active);
    void receive(Seg s);
    void to_listener(SegView& seg);
    Seg incoming(ScriptLine& line);
    void expect_out(ScriptLine& line);
    void compare(ScriptLine& line, const Seg& got);
    void expect(ScriptLine& line);
    void events(ScriptLine& line);
    void collect();
    void reply(const Actions& a);
    void pass(Duration d, bool stop_at_output);
    Instant next_deadline() const;
    void note(const Actions& a) {
        seen_ |= a.events;
        if (a.error) error_ = a.error;
        reply(a);
    }
    void fail(const std::string& what);
    std::string describe(const Seg& s) const;
    void must_be_quiet(const char* before);
    OpenParams params();

    TcpWorld world_;
    Tcb t_;
    TcpConfig cfg_;
    IsnSecret secret_{11, 12};
    bool fast_open_ = false, no_cookie_ = false;
    Cookie cookie_;
    FastOpenKeys keys_;
    ListenState listener_;
    std::optional<HalfOpen> half_;
    bool listening_ = false;
    Instant now_{100000000000};
    std::deque<Seg> sent_;
    uint32_t seen_ = 0;
    int error_ = 0;
    uint32_t peer_ts_ = 5000, peer_window_ = 60000;
    bool peer_stamps_ = false;
    uint64_t written_ = 0, read_ = 0;
    int line_ = 0;
    bool broken_ = false;
    uint32_t iss_ = kOurIss;
    uint32_t our_stamp_ = 0;  // of our SYN-ACK
};

}  // namespace vma::tcp
