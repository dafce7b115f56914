// Wakes programs that sleep on a completion channel or for an asynchronous event: named pipes in the wire's directory, which
// reach across network namespaces. The owner reads what is written; writing never blocks.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "softhca/fabric/wire.h"

namespace softhca {

class Notifier {
  public:
    ~Notifier();
    // The reading end of a new pipe, -1 with errno. The owner removes it with drop().
    static int make(const std::string& path);
    static void drop(const std::string& path, int fd);

    // Writes `value`; nothing happens when the reader is gone or has 8192 events waiting.
    void notify(const std::string& path, const void* value, uint32_t bytes);

    static std::string channel_path(const Wire& wire, uint32_t station, uint32_t generation,
                                    uint32_t channel);
    static std::string async_path(const Wire& wire, uint32_t station, uint32_t generation);

  private:
    std::mutex mutex_;
    std::map<std::string, int> writers_;
};

// What an asynchronous event pipe carries.
struct AsyncRecord {
    uint32_t type;     // ibv_event_type
    uint32_t port;     // port events
    uint64_t element;  // the owner's object, other events
};

}  // namespace softhca
