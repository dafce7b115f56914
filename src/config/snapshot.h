// Snapshot: everything the rest of the library reads of the configuration, as one immutable value. Reload makes a new
// one.
// load_snapshot reads the rules file with raw system calls; the caller publishes the result (one pointer swap).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/options.h"
#include "config/rules.h"

namespace vma {

struct Snapshot {
    Options options;
    Rules rules;
    std::vector<std::string> added;  // texts of add_rule, in order: they outlive a reload
    uint32_t generation = 0;         // counts changes of the rules
};

struct LoadedSnapshot {
    std::shared_ptr<const Snapshot> snapshot;  // never null
    std::vector<Note> notes;                   // to be logged once, in order
    bool rules_ok = true;                      // the rules file was read without an error
};

struct LoadContext {
    ParseContext parse;
    std::string program;  // basename of argv[0]
};

// The whole of a regular file. EINVAL: not a regular file; EFBIG: more than kMaxConfigFile; else what open or read said.
inline constexpr size_t kMaxConfigFile = 4 << 20;
Result<std::string> read_config_file(const std::string& path);

// At start. A missing, unreadable or broken file leaves the rules that could be read (none: everything is offloaded) and
// says so.
LoadedSnapshot load_snapshot(std::span<const char* const> environment, const LoadContext&);

// Reads the rules file again and puts what the program added on top. On any error the old rules stay, the snapshot
// returned is `old` and the notes say why; also when nothing has changed, with rules_ok.
LoadedSnapshot reload_rules(const std::shared_ptr<const Snapshot>& old);

// add_conf_rule: a snapshot with the rules of `text` at the head of their lists. When rules_ok is false only the
// statements before the error are in it and the notes say why.
LoadedSnapshot add_rule(const std::shared_ptr<const Snapshot>& old, std::string_view text);

}  // namespace vma
