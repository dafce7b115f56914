// Any bytes as a rules file: no crash, errors with a place inside the text, and the value stays usable: every decision has
// an answer, and what table() prints of it parses again.
#include <cstdlib>
#include <string_view>

#include "config/rules.h"

using namespace vma;

static void require(bool ok) {
    if (!ok) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    RuleContext context;
    context.program = "prog";
    const Rules::Parsed parsed = Rules::parse(text, context);
    unsigned stops = 0;
    for (const RuleError& e : parsed.errors) {
        require(e.line >= 1 && e.column >= 1 && e.line <= size + 1 && e.column <= size + 1);
        require(!e.message.empty());
        stops += e.stops;
    }
    require(stops <= 1);
    const Endpoint any{}, loop{IpAddr::v4(127, 0, 0, 1), 80};
    for (unsigned r = 0; r < kRoleCount; ++r) {
        for (const Endpoint& e : {any, loop}) {
            const Decision d = parsed.rules.decide(Role(r), e, &loop);
            require(d.transport != Transport::sdp && d.transport != Transport::sa);
            require(d.offload || d.rule != nullptr);
            if (d.rule) require(d.rule->role == Role(r));
        }
    }
    require(parsed.rules.decide_early(6) == Transport::vma || !parsed.rules.empty());
    // One rule's own text, alone, is accepted again and means the same.
    const Decision d = parsed.rules.decide(Role::tcp_server, loop);
    if (d.rule) {
        const Rules::Parsed again =
            Rules::parse("use os tcp_server " + d.rule->first.to_text(), context);
        require(again.ok() &&
                again.rules.decide(Role::tcp_server, loop).rule->first == d.rule->first);
    }
    const Rules::Parsed added = parsed.rules.add(text);
    require(added.rules.size() >= parsed.rules.size());
    return 0;
}
