#include "vmad/policy.h"

#include <errno.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

namespace vmad {
namespace {

constexpr uint32_t kMostMib = 1u << 20;
constexpr uint32_t kMost = 1'000'000'000;
constexpr size_t kMostName = 31;

std::string_view next_word(std::string_view& line) {
    const size_t from = std::min(line.find_first_not_of(" \t\r"), line.size());
    const size_t to = std::min(line.find_first_of(" \t\r", from), line.size());
    const std::string_view word = line.substr(from, to - from);
    line.remove_prefix(to);
    return word;
}

bool number(std::string_view text, uint32_t most, uint32_t* out) {
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, *out);
    return error == std::errc() && at == end && !text.empty() && *out <= most;
}

template <class Fn>
bool each_of_list(std::string_view list, Fn&& fn) {
    while (!list.empty()) {
        const size_t comma = std::min(list.find(','), list.size());
        if (comma == 0 || comma + 1 == list.size() || !fn(list.substr(0, comma))) return false;
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return true;
}

bool ports(std::string_view list, std::vector<PortRange>& out) {
    return each_of_list(list, [&](std::string_view item) {
        const size_t dash = item.find('-');
        uint32_t first = 0, last = 0;
        if (!number(item.substr(0, dash), 65535, &first)) return false;
        last = first;
        if (dash != item.npos && !number(item.substr(dash + 1), 65535, &last)) return false;
        if (first == 0 || last < first) return false;
        out.push_back({uint16_t(first), uint16_t(last)});
        return true;
    });
}

bool is_name(std::string_view text) {
    return !text.empty() && text.size() <= kMostName &&
           std::all_of(text.begin(), text.end(), [](unsigned char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || c == '.';
           });
}

bool user_id(const std::string& name, uint32_t* out) {
    if (const passwd* entry = getpwnam(name.c_str())) {
        *out = entry->pw_uid;
        return true;
    }
    return number(name, UINT32_MAX - 1, out);
}

bool group_id(const std::string& name, uint32_t* out) {
    if (const group* entry = getgrnam(name.c_str())) {
        *out = entry->gr_gid;
        return true;
    }
    return number(name, UINT32_MAX - 1, out);
}

}  // namespace

bool Allowance::has_interface(const char* name) const {
    return interfaces.empty() ||
           std::any_of(interfaces.begin(), interfaces.end(), [&](const std::string& pattern) {
               return fnmatch(pattern.c_str(), name, 0) == 0;
           });
}

bool Allowance::has_port(uint16_t port) const {
    return ports.empty() || std::any_of(ports.begin(), ports.end(), [&](PortRange r) {
               return r.first <= port && port <= r.last;
           });
}

bool Policy::parse_rule(std::string_view line, Rule& rule, std::string* why) {
    const std::string_view who = next_word(line);
    if (who != "any") {
        const std::string name(next_word(line));
        const bool user = who == "user";
        if (!user && who != "group") {
            *why = fmt::format("\"{}\": a rule begins with user, group or any", who);
            return false;
        }
        rule.who = user ? Rule::Who::user : Rule::Who::group;
        if (!(user ? user_id(name, &rule.id) : group_id(name, &rule.id))) {
            *why = fmt::format("there is no {} \"{}\"", who, name);
            return false;
        }
    }
    Allowance& a = rule.allowance;
    const auto patterns = [](std::string_view list, std::vector<std::string>& out) {
        return each_of_list(list, [&](std::string_view item) {
            out.emplace_back(item);
            return true;
        });
    };
    for (std::string_view key = next_word(line); !key.empty(); key = next_word(line)) {
        if (key == "deny") {
            a.denied = true;
            continue;
        }
        const std::string_view value = next_word(line);
        uint32_t count = 0;
        bool good = !value.empty();
        if (key == "interface") {
            good = good && patterns(value, a.interfaces);
        } else if (key == "in") {
            good = good && patterns(value, rule.namespaces);
        } else if (key == "port") {
            good = good && ports(value, a.ports);
        } else if (key == "rings") {
            good = number(value, kMost, &a.rings);
        } else if (key == "memory") {
            good = number(value, kMostMib, &count);
            a.memory = uint64_t(count) << 20;
        } else if (key == "flows") {
            good = number(value, kMost, &a.flows);
        } else if (key == "share") {
            good = is_name(value);
            a.share = value;
        } else {
            *why = fmt::format(
                "\"{}\": it is in, deny, interface, port, rings, memory, flows or share that a "
                "rule "
                "may have",
                key);
            return false;
        }
        if (!good) {
            *why = fmt::format("{} \"{}\": {}", key, value,
                               key == "port" ? "ports are numbers or ranges, N or N-M, with commas"
                               : key == "interface" || key == "in" ? "names or patterns with commas"
                               : key == "memory"                   ? "MiB, a number"
                               : key == "share" ? "a name of up to 31 letters, digits, - _ ."
                                                : "a number");
            return false;
        }
    }
    return true;
}

bool Policy::parse(std::string_view text, const std::string& name, std::string* why) {
    std::vector<Rule> rules;
    for (unsigned number = 1; !text.empty(); number++) {
        const size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        line = line.substr(0, line.find('#'));
        if (line.find_first_not_of(" \t\r") == line.npos) continue;
        Rule rule;
        std::string what;
        if (!parse_rule(line, rule, &what)) {
            *why = fmt::format("{}:{}: {}", name, number, what);
            return false;
        }
        rules.push_back(std::move(rule));
    }
    rules_ = std::move(rules);
    present_ = true;
    return true;
}

bool Policy::read(const std::string& file, std::string* why) {
    std::ifstream in(file);
    std::ostringstream text;
    if (in) text << in.rdbuf();
    if (!in || in.bad()) {
        *why = fmt::format("{}: {}", file, std::strerror(errno ? errno : EIO));
        return false;
    }
    return parse(text.str(), file, why);
}

bool Policy::Rule::is_for(uid_t user, std::span<const gid_t> groups) const {
    return who == Who::any || (who == Who::user && id == user) ||
           (who == Who::group && std::find(groups.begin(), groups.end(), id) != groups.end());
}

bool Policy::Rule::is_in(const Namespace& where, uid_t user) const {
    if (namespaces.empty()) return where.host;
    return std::any_of(namespaces.begin(), namespaces.end(), [&](const std::string& name) {
        if (name == "host") return where.host;
        if (where.host) return false;
        return name == "own" ? where.owner == user : where.is_named(name.c_str());
    });
}

const Allowance& Policy::of(uid_t user, std::span<const gid_t> groups,
                            const Namespace& where) const {
    static const Allowance all, nothing{true, {}, {}};
    for (const Rule& rule : rules_)
        if (rule.is_for(user, groups) && rule.is_in(where, user)) return rule.allowance;
    return present_ || !where.host ? nothing : all;
}

}  // namespace vmad
