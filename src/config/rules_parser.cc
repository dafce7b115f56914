// libvma.conf: lexer and recursive descent over it. One statement per line; the grammar:
//
//   config    = { NL } { statement ( NL { NL } | EOF ) }
//   statement = "application-id" WORD WORD | "use" transport role endpoint [ ":" endpoint ] | log
//   endpoint  = ( "*" | IPv4 [ "/" INT ] | "[" IPv6 "]" [ "/" INT ] ) ":" ( "*" | INT [ "-" INT ] )
//   log       = "log" { "destination" ( "stderr" | "syslog" | "file" WORD ) | "min-level" INT }
#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config/rules.h"

namespace vma {
namespace {

enum class TokenKind : uint8_t { word, integer, symbol, address6, newline, end, bad };
struct Token {
    TokenKind kind = TokenKind::end;
    std::string_view text;
    uint32_t line = 1, column = 1;
    size_t offset = 0;    // of its first byte
    uint64_t number = 0;  // integer, saturated
};

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '-'; }

class Lexer {
  public:
    explicit Lexer(std::string_view text) : text_(text) {}

    Token next() {
        skip_blanks();
        if (at_end()) return make(TokenKind::end, 0);
        const char c = text_[pos_];
        if (c == '\n') return newline();
        if (is_letter(c)) return make(TokenKind::word, run(is_word));
        if (is_digit(c)) return integer();
        if (c == '[') return address6();
        if (c == '.' || c == ':' || c == '/' || c == '*' || c == '-')
            return make(TokenKind::symbol, 1);
        return make(TokenKind::bad, 1);
    }

    // A word taken as it stands: what follows application-id and a file destination.
    Token next_verbatim() {
        skip_blanks();
        if (at_end()) return make(TokenKind::end, 0);
        if (text_[pos_] == '\n') return newline();
        return make(TokenKind::word, run([](char c) { return !is_blank(c) && c != '\n'; }));
    }

    // The text between two offsets, without a comment's and outer blanks.
    std::string slice(size_t from, size_t to) const {
        std::string_view s = text_.substr(from, to - from);
        while (!s.empty() && is_blank(s.back())) s.remove_suffix(1);
        return std::string(s);
    }

  private:
    bool at_end() const { return pos_ >= text_.size(); }
    void skip_blanks() {
        while (!at_end() && is_blank(text_[pos_])) ++pos_;
        if (!at_end() && text_[pos_] == '#')
            while (!at_end() && text_[pos_] != '\n') ++pos_;
    }
    template <class Predicate>
    size_t run(Predicate p) const {
        size_t n = 0;
        while (pos_ + n < text_.size() && p(text_[pos_ + n])) ++n;
        return n;
    }
    Token make(TokenKind kind, size_t length) {
        Token t{kind, text_.substr(pos_, length), line_, uint32_t(pos_ - line_start_ + 1), pos_, 0};
        pos_ += length;
        return t;
    }
    Token newline() {
        Token t = make(TokenKind::newline, 1);
        ++line_;
        line_start_ = pos_;
        return t;
    }
    Token integer() {
        const size_t length = run(is_digit);
        const bool leading_zero = length > 1 && text_[pos_] == '0';
        Token t = make(leading_zero ? TokenKind::bad : TokenKind::integer, length);
        for (const char c : t.text)
            t.number = std::min<uint64_t>(t.number * 10 + uint64_t(c - '0'), UINT32_MAX);
        return t;
    }
    Token address6() {
        const size_t length = run([](char c) { return c != ']' && c != '\n'; });
        const bool closed = pos_ + length < text_.size() && text_[pos_ + length] == ']';
        return closed ? make(TokenKind::address6, length + 1) : make(TokenKind::bad, 1);
    }

    std::string_view text_;
    size_t pos_ = 0, line_start_ = 0;
    uint32_t line_ = 1;
};

std::string shown(const Token& t) {
    switch (t.kind) {
        case TokenKind::newline:
            return "the end of the line";
        case TokenKind::end:
            return "the end of the file";
        default:
            return fmt::format("\"{}\"", t.text.substr(0, 60));
    }
}

struct TransportWord {
    const char* word;
    Transport transport;
};
constexpr TransportWord kTransports[] = {{"os", Transport::os},
                                         {"vma", Transport::vma},
                                         {"sdp", Transport::sdp},
                                         {"sa", Transport::sa},
                                         {"*", Transport::any}};

}  // namespace

class RuleParser {
  public:
    RuleParser(std::string_view text, Rules start, bool at_head, bool in_file)
        : lexer_(text), at_head_(at_head), in_file_(in_file) {
        out_.rules = std::move(start);
    }

    Rules::Parsed run() {
        advance();
        while (!failed_) {
            while (token_.kind == TokenKind::newline) advance();
            if (token_.kind == TokenKind::end || !statement()) break;
            if (token_.kind != TokenKind::newline && token_.kind != TokenKind::end) {
                fail("the end of the line");
                break;
            }
        }
        out_.rules.choose_block();
        return std::move(out_);
    }

  private:
    void advance() {
        last_end_ = token_.offset + token_.text.size();
        token_ = lexer_.next();
    }
    bool is(const char* word) const {
        return (token_.kind == TokenKind::word || token_.kind == TokenKind::symbol) &&
               token_.text == word;
    }
    bool accept(const char* word) {
        if (!is(word)) return false;
        advance();
        return true;
    }

    std::string place(const Token& t) const {
        return fmt::format("{}:{}:{}", out_.rules.context_.file, t.line, t.column);
    }
    // Stops the parse at the current token. Always false, for `return fail(...)`.
    bool fail(std::string_view expected) {
        if (failed_) return false;
        failed_ = true;
        std::string hint;
        if (token_.kind == TokenKind::bad && is_digit(token_.text.front()))
            hint = " (a leading zero)";
        out_.errors.push_back(
            {token_.line, token_.column,
             fmt::format(
                 "{}: expected {}, found {}{}; the {} rules before it apply, the rest of {} "
                 "is not read",
                 place(token_), expected, shown(token_), hint, out_.rules.size(),
                 in_file_ ? "the file" : "the text"),
             true});
        return false;
    }
    // Leaves the statement out and goes on.
    void reject(const Token& at, std::string_view what, std::string_view range) {
        statement_ok_ = false;
        out_.errors.push_back(
            {at.line, at.column,
             fmt::format(
                 "{}: {} {} is out of range, expected {}; this rule is left out, the others "
                 "apply",
                 place(at), what, at.text.substr(0, 20), range),
             false});
    }
    void note(const Token& at, std::string_view text) {
        out_.notes.push_back({LogLevel::warning, fmt::format("{}: {}", place(at), text)});
    }

    bool statement() {
        if (is("application-id")) return application();
        if (is("use")) return use();
        if (is("log")) return log();
        return fail("application-id, use or log");
    }

    bool application() {
        Token words[2];
        for (Token& w : words) {
            w = lexer_.next_verbatim();
            if (w.kind != TokenKind::word) {
                token_ = w;
                return fail(&w == words ? "a program name or pattern" : "an application id");
            }
        }
        advance();
        open_block(words[0].text, words[1].text);
        return true;
    }

    void open_block(std::string_view program, std::string_view id) {
        auto& blocks = out_.rules.blocks_;
        const auto it = std::find_if(blocks.begin(), blocks.end(), [&](const auto& b) {
            return b.program == program && b.id == id;
        });
        out_.rules.last_block_ = int(it - blocks.begin());
        if (it == blocks.end()) blocks.push_back({std::string(program), std::string(id), {}});
    }

    bool use() {
        const Token start = token_;
        advance();
        statement_ok_ = true;
        Rule rule;
        if (!transport(rule.transport) || !role(rule.role) || !endpoint(rule.first)) return false;
        if (accept(":")) {
            rule.has_second = true;
            if (!endpoint(rule.second)) return false;
        }
        if (token_.kind != TokenKind::newline && token_.kind != TokenKind::end)
            return fail(rule.has_second ? "the end of the line"
                                        : "\":\" and a second address, or the end of the line");
        if (!statement_ok_) return true;
        rule.line = in_file_ ? start.line : 0;
        rule.text = lexer_.slice(start.offset, last_end_);
        surprises(start, rule);
        // VMA reads a second address for every role and uses it for two.
        if (rule.has_second && rule.role != Role::tcp_client && rule.role != Role::udp_connect) {
            rule.has_second = false;
            rule.second = {};
        }
        if (out_.rules.last_block_ < 0) open_block("*", "*");
        auto& list = out_.rules.blocks_[size_t(out_.rules.last_block_)].lists[unsigned(rule.role)];
        list.insert(at_head_ ? list.begin() : list.end(), std::move(rule));
        return true;
    }

    void surprises(const Token& start, const Rule& rule) {
        if (rule.transport == Transport::any)
            note(start,
                 "transport * is neither os nor vma: it offloads listeners and multicast groups "
                 "and leaves the "
                 "rest to the kernel; write os or vma");
        if (rule.transport == Transport::sdp || rule.transport == Transport::sa)
            note(start, fmt::format("a rule for {} never matches", transport_name(rule.transport)));
        if (rule.has_second && rule.role != Role::tcp_client && rule.role != Role::udp_connect)
            note(start, fmt::format("{} has one address, the second one is not used",
                                    role_name(rule.role)));
        for (const EndpointPattern* p : {&rule.first, &rule.second})
            if (p->first_port > p->last_port)
                note(start,
                     fmt::format("ports {}-{} are in the wrong order: the rule never matches",
                                 p->first_port, p->last_port));
    }

    bool transport(Transport& out) {
        for (const auto& t : kTransports) {
            if (!is(t.word)) continue;
            out = t.transport;
            advance();
            return true;
        }
        return fail("a transport: os, vma, sdp, sa or *");
    }

    bool role(Role& out) {
        for (unsigned r = 0; r < kRoleCount; ++r) {
            if (!is(role_name(Role(r)))) continue;
            out = Role(r);
            advance();
            return true;
        }
        return fail("a role: tcp_server, tcp_client, udp_sender, udp_receiver or udp_connect");
    }

    bool endpoint(EndpointPattern& out) {
        if (!address(out)) return false;
        if (!accept(":"))
            return fail(out.any_address ? "\":\" and a port"
                                        : "\"/\" and a prefix, or \":\" and a port");
        return ports(out);
    }

    bool address(EndpointPattern& out) {
        if (accept("*")) return true;
        out.any_address = false;
        if (token_.kind == TokenKind::address6) return address6(out);
        if (token_.kind != TokenKind::integer) return fail("an address: *, a.b.c.d or [IPv6]");
        uint8_t octets[4] = {};
        for (unsigned i = 0; i < 4; ++i) {
            if (i != 0 && !accept(".")) return fail("\".\" and the next number of the address");
            if (token_.kind != TokenKind::integer) return fail("a number of the address, 0..255");
            if (token_.number > 255) reject(token_, "octet", "0..255");
            octets[i] = uint8_t(token_.number);
            advance();
        }
        out.address = IpAddr::v4(octets[0], octets[1], octets[2], octets[3]);
        unsigned bits = 32;
        if (!prefix(bits)) return false;
        out.prefix = uint8_t(96 + bits);
        return true;
    }

    bool address6(EndpointPattern& out) {
        const std::string text(token_.text.substr(1, token_.text.size() - 2));
        uint8_t bytes[16];
        if (inet_pton(AF_INET6, text.c_str(), bytes) != 1)
            return fail("an IPv6 address in brackets");
        advance();
        out.address = IpAddr::v6_bytes(bytes);
        unsigned bits = 128;
        if (!prefix(bits)) return false;
        out.prefix = uint8_t(bits);
        return true;
    }

    // A prefix longer than the address is the whole address, as in VMA.
    bool prefix(unsigned& bits) {
        if (!accept("/")) return true;
        if (token_.kind != TokenKind::integer)
            return fail(fmt::format("a prefix length, 0..{}", bits));
        bits = unsigned(std::min<uint64_t>(token_.number, bits));
        advance();
        return true;
    }

    bool ports(EndpointPattern& out) {
        if (accept("*")) return true;
        if (!port(out.first_port)) return false;
        out.last_port = out.first_port;
        return !accept("-") || port(out.last_port);
    }
    bool port(uint16_t& out) {
        if (token_.kind != TokenKind::integer) return fail("a port: * or 0..65535");
        if (token_.number > 65535) reject(token_, "port", "0..65535");
        out = uint16_t(token_.number);
        advance();
        return true;
    }

    bool log() {
        const Token start = token_;
        advance();
        bool said = false;
        while (token_.kind != TokenKind::newline && token_.kind != TokenKind::end) {
            if (is("destination")) {
                advance();
                if (!log_destination()) return false;
            } else if (accept("min-level")) {
                if (token_.kind != TokenKind::integer) return fail("a number");
                out_.rules.min_log_level_ = int(std::min<uint64_t>(token_.number, 1000));
                advance();
            } else {
                return fail("destination, min-level or the end of the line");
            }
            if (!said)
                note(start, "log statements have no effect; use VMA_TRACELEVEL and VMA_LOG_FILE");
            said = true;
        }
        return true;
    }

    // The documented words, and the ones that VMA's own grammar has by mistake.
    bool log_destination() {
        if (is("file") || is("yfile")) {
            token_ = lexer_.next_verbatim();
            if (token_.kind != TokenKind::word) return fail("a file name");
            advance();
            return true;
        }
        if (accept("stderr") || accept("ystderr") || accept("syslog")) return true;
        return fail("a destination: stderr, syslog or file NAME");
    }

    Lexer lexer_;
    Token token_;
    size_t last_end_ = 0;  // end of the token before token_
    const bool at_head_, in_file_;
    bool failed_ = false, statement_ok_ = true;
    Rules::Parsed out_;
};

Rules::Parsed Rules::parse(std::string_view text, const RuleContext& context) {
    Rules start;
    start.context_ = context;
    return RuleParser(text, std::move(start), context.insert_at_head, true).run();
}

Rules::Parsed Rules::add(std::string_view text) const {
    Rules start = *this;
    const std::string file = std::exchange(start.context_.file, "added rule");
    start.context_.insert_at_head = true;
    Parsed out = RuleParser(text, std::move(start), true, false).run();
    out.rules.context_.file = file;
    return out;
}

}  // namespace vma
