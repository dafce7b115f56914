// RulesWatch: tells when the rules file may have other contents (VMA_CONF_WATCH). inotify(7) on the file's directory, so that
// editors that write a new file and rename it, a file that goes away and comes back, and a symbolic link that is pointed
// elsewhere are seen; and on the file that a link leads to. A file that is being written counts when its writer closes it.
//
// One descriptor (OwnFd), nothing else while nothing happens; a directory that is gone is looked for by retry(). Internal
// thread only, but for open() before it starts and reset() in a forked child.
#pragma once

#include <cstdint>
#include <string>

#include "base/own_fd.h"
#include "base/result.h"

namespace vma {

class RulesWatch {
  public:
    // `path` is absolute; neither the file nor its directory need exist. Fails where inotify does (EMFILE: the user's
    // fs.inotify.max_user_instances).
    Status open(std::string path);
    void reset();
    bool active() const { return notify_.valid(); }
    int fd() const { return notify_.fd(); }

    // Takes in what has happened. True: the file is worth reading.
    bool process();
    // The directory is being watched, or was found again: then true once.
    bool retry();

  private:
    struct Identity {
        uint64_t device = 0, inode = 0;  // 0: no file
        bool operator==(const Identity&) const = default;
    };
    bool attach();
    void follow_file();
    Identity identity() const;
    bool own_event(uint32_t mask) const;

    OwnFd notify_;
    std::string path_, directory_, name_;
    int directory_watch_ = -1, file_watch_ = -1;
    Identity seen_;
};

}  // namespace vma
