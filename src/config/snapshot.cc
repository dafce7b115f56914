#include "config/snapshot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstring>

#include "base/sys.h"
#include "config/option_file.h"

namespace vma {
namespace {

// The program may change its directory before the file is read again.
std::string absolute(const std::string& path) {
    char here[4096];
    if (path.empty() || path.front() == '/') return path;
    const long n = sys::raw(SYS_getcwd, sys::ptr(here), sizeof here);
    return n <= 1 || here[0] != '/' ? path : fmt::format("{}/{}", here, path);
}

// Opens without blocking on a FIFO; the type is checked before the first read.
Result<int> open_regular(const std::string& path) {
    const long fd = sys::raw(SYS_openat, AT_FDCWD, sys::ptr(path.c_str()),
                             O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0) return Errno{int(-fd)};
    struct stat st;
    const long r = sys::raw(SYS_fstat, fd, sys::ptr(&st));
    if (r == 0 && S_ISREG(st.st_mode)) return int(fd);
    sys::close(int(fd));
    return Errno{r == 0 ? EINVAL : int(-r)};
}

std::string why_unread(int error) {
    if (error == EINVAL) return "not a regular file";
    char text[128];
    return strerror_r(error, text, sizeof(text));
}

void take_over(const Rules::Parsed& parsed, std::vector<Note>& notes) {
    for (const RuleError& e : parsed.errors) notes.push_back({LogLevel::warning, e.message});
    notes.insert(notes.end(), parsed.notes.begin(), parsed.notes.end());
}

OptionFile read_settings(const std::string& file) {
    const Result<std::string> text = read_config_file(file);
    if (text.ok()) return read_option_file(*text, file);
    return {
        {},
        {{LogLevel::warning, fmt::format("settings file {}: {}; it is not used (VMA_CONFIG_JSON)",
                                         file, why_unread(text.error()))}}};
}

LoadedSnapshot keep(const std::shared_ptr<const Snapshot>& old, std::vector<Note> notes,
                    std::string last) {
    notes.push_back({LogLevel::warning, std::move(last)});
    return {old, std::move(notes), false};
}

}  // namespace

Result<std::string> read_config_file(const std::string& path) {
    const Result<int> fd = open_regular(path);
    if (!fd.ok()) return Errno{fd.error()};
    std::string text;
    char chunk[4096];
    ssize_t n = 0;
    while (text.size() <= kMaxConfigFile) {
        n = sys::read(*fd, chunk, sizeof(chunk));
        if (n == -EINTR) continue;
        if (n <= 0) break;
        text.append(chunk, size_t(n));
    }
    sys::close(*fd);
    if (n < 0) return Errno{int(-n)};
    if (text.size() > kMaxConfigFile) return Errno{EFBIG};
    return text;
}

LoadedSnapshot load_snapshot(std::span<const char* const> environment, const LoadContext& context) {
    LoadedSnapshot out;
    ParsedOptions parsed = parse_options(environment, context.parse);
    if (!parsed.options.config_json.empty()) {
        const OptionFile file = read_settings(parsed.options.config_json);
        parsed = parse_options(environment, context.parse, file.settings);
        out.notes = file.notes;
    }
    out.notes.insert(out.notes.end(), parsed.notes.begin(), parsed.notes.end());
    auto made = std::make_shared<Snapshot>();
    made->options = std::move(parsed.options);

    RuleContext rule_context;
    rule_context.file = absolute(made->options.config_file);
    rule_context.program = context.program;
    rule_context.application_id = made->options.application_id;
    const Result<std::string> text = read_config_file(rule_context.file);
    if (!text.ok()) {
        // The default file may well be absent; a file that was named may not.
        const bool named = made->options.is_set(Opt::config_file);
        const bool absent = text.error() == ENOENT && !named;
        out.notes.push_back(
            {absent ? LogLevel::debug : LogLevel::warning,
             fmt::format("rules file {}: {}; no rules, everything is offloaded (VMA_CONFIG_FILE)",
                         rule_context.file, why_unread(text.error()))});
        out.rules_ok = absent;
    }
    Rules::Parsed rules = Rules::parse(text.ok() ? *text : std::string(), rule_context);
    take_over(rules, out.notes);
    out.rules_ok = out.rules_ok && rules.ok();
    if (rules.rules.application_id_unknown())
        out.notes.push_back(
            {LogLevel::warning,
             fmt::format(
                 "VMA_APPLICATION_ID={}: no block of {} is for it and program {}; everything "
                 "is offloaded",
                 rule_context.application_id, rule_context.file, rule_context.program)});
    made->rules = std::move(rules.rules);
    out.snapshot = std::move(made);
    return out;
}

LoadedSnapshot reload_rules(const std::shared_ptr<const Snapshot>& old) {
    RuleContext context = old->rules.context();
    const Result<std::string> text = read_config_file(context.file);
    if (!text.ok())
        return keep(old, {},
                    fmt::format("rules file {}: {}; the old rules stay", context.file,
                                why_unread(text.error())));
    context.insert_at_head = false;
    Rules::Parsed parsed = Rules::parse(*text, context);
    LoadedSnapshot out;
    take_over(parsed, out.notes);
    if (!parsed.ok())
        return keep(old, std::move(out.notes),
                    fmt::format("rules file {}: the old rules stay", context.file));
    const size_t from_file = parsed.rules.size();
    for (const std::string& added : old->added) parsed.rules = parsed.rules.add(added).rules;
    if (parsed.rules == old->rules) {
        out.notes = {{LogLevel::debug,
                      fmt::format("rules file {}: unchanged, {} rules", context.file, from_file)}};
        out.snapshot = old;
        return out;
    }
    auto made = std::make_shared<Snapshot>(*old);
    made->rules = std::move(parsed.rules);
    ++made->generation;
    out.notes.push_back({LogLevel::info, fmt::format("rules file {}: {} rules read again",
                                                     context.file, from_file)});
    out.snapshot = std::move(made);
    return out;
}

LoadedSnapshot add_rule(const std::shared_ptr<const Snapshot>& old, std::string_view text) {
    Rules::Parsed parsed = old->rules.add(text);
    LoadedSnapshot out;
    take_over(parsed, out.notes);
    out.rules_ok = parsed.ok();
    auto made = std::make_shared<Snapshot>(*old);
    made->rules = std::move(parsed.rules);
    made->added.emplace_back(text);
    ++made->generation;
    out.snapshot = std::move(made);
    return out;
}

}  // namespace vma
