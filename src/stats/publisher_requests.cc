// What viewers ask for, and what the page's header tells them.
#include <cstring>
#include <utility>

#include "stats/publisher.h"
#include "stats/publisher_state.h"

namespace vma::stats {
namespace {

constexpr Duration kAnswerGap =
    Duration::millis(10);  // requests closer together than this share an answer

// The number of a request that is not met, or 0. Lock held, as below.
uint64_t asked_for(const PublisherState& s, Verb verb) {
    const uint64_t number = s.wishes.asked[unsigned(verb)];
    return number == s.met[unsigned(verb)] ? 0 : number;
}
void meet(PublisherState& s, Verb verb, uint64_t number) {
    s.met[unsigned(verb)] = number;
    s.page.put(s.page.header().answered[unsigned(verb)], number);
}

}  // namespace

void will_publish() {
    const LockedPage page;
    PublisherState& s = page.state;
    s.publishing = 1;
    if (s.page.exists()) s.page.put(s.page.header().publishing, 1);
}

void look() {
    const LockedPage page;
    PublisherState& s = page.state;
    s.page.look_at_length();
    Control first, second;
    if (!s.page.read(first)) return;
    if (same(first.asked, s.wishes.asked)) return;
    // A viewer writes what it wishes before its number: what is read after a number is what belongs to it, or newer.
    if (!s.page.read(second)) return;
    s.wishes = second;
    std::memcpy(s.wishes.asked, first.asked, sizeof first.asked);
}

bool due(Instant now) {
    const LockedPage page;
    PublisherState& s = page.state;
    if (!s.page.exists()) return false;
    const uint64_t zero = asked_for(s, Verb::zero);
    const uint64_t request = asked_for(s, Verb::counters);
    if (zero || request) {
        if (s.last_published.ns != 0 && now - s.last_published < kAnswerGap) return false;
        if (zero) s.zero_fds = s.wishes.zero_fds;
        s.zeroing = zero;
        if (request) {
            s.met[unsigned(Verb::counters)] = request;
            s.reader_until = now + kReaderActive;
        }
        return true;
    }
    return now < s.reader_until && now - s.last_published >= kPublishEvery;
}

void published(Instant now) {
    const LockedPage page;
    PublisherState& s = page.state;
    if (!s.page.exists()) return;
    s.last_published = now;
    s.page.put(s.page.header().published_ns, uint64_t(now.ns));
    if (s.zeroing) meet(s, Verb::zero, std::exchange(s.zeroing, 0));
    meet(s, Verb::counters, s.met[unsigned(Verb::counters)]);
}

uint64_t asked(Verb verb) {
    const LockedPage page;
    return asked_for(page.state, verb);
}

void answer(Verb verb, uint64_t number) {
    const LockedPage page;
    PublisherState& s = page.state;
    // The page may be another than that of the request by now.
    if (s.page.exists() && number == s.wishes.asked[unsigned(verb)]) meet(s, verb, number);
}

Control control() {
    const LockedPage page;
    return page.state.wishes;
}

bool mend() {
    int error = 0;
    bool mended;
    {
        const LockedPage page;
        PublisherState& s = page.state;
        if (s.page.lost()) have_page(s, &error);
        mended = std::exchange(s.mended, false);
    }
    if (error) say_why_there_is_no_page(error);
    return mended;
}

void set_log_state(int level, int details) {
    const LockedPage page;
    PublisherState& s = page.state;
    if (!s.page.exists()) return;
    s.page.put(s.page.header().log_level, level);
    s.page.put(s.page.header().log_details, details);
}

void set_descriptors(uint32_t limit) {
    const LockedPage page;
    PublisherState& s = page.state;
    s.descriptors = limit;
    if (s.page.exists()) s.page.put(s.page.header().descriptors, limit);
}

void set_capture_error(int error) {
    const LockedPage page;
    PublisherState& s = page.state;
    if (s.page.exists()) s.page.put(s.page.header().capture_error, error);
}

void set_rules(const RulesState& rules) {
    const LockedPage page;
    PublisherState& s = page.state;
    if (!s.page.exists()) return;
    Header& h = s.page.header();
    copy_text(h.rules_text, sizeof h.rules_text, rules.text);
    s.page.show(h.rules_text, sizeof h.rules_text);
    s.page.put(h.rules_count, rules.count);
    s.page.put(h.rules_ok, rules.ok);
    s.page.put(h.rules_generation, rules.generation);
}

}  // namespace vma::stats
