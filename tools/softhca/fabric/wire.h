// The wire: a directory of files (default /dev/shm/softhca) that all processes of a test share. Joining it claims a station
// slot; other stations are mapped when something is first sent to them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softhca/fabric/layout.h"

namespace softhca {

// A station's file, mapped; read-write for everybody on the wire.
class StationMap {
  public:
    StationMap() = default;
    ~StationMap();
    StationMap(const StationMap&) = delete;
    StationMap& operator=(const StationMap&) = delete;

    bool map(int fd);  // the fd stays the caller's
    Station& station() const { return *reinterpret_cast<Station*>(base_); }
    Station* operator->() const { return &station(); }
    template <class T>
    T* at(uint64_t offset) const {
        return reinterpret_cast<T*>(base_ + offset);
    }
    uint64_t offset_of(const void* p) const {
        return uint64_t(static_cast<const char*>(p) - base_);
    }

    uint32_t generation = 0;

  private:
    char* base_ = nullptr;
};

class Wire {
  public:
    // Opens or makes the directory `path`; null with errno.
    static std::unique_ptr<Wire> open(const std::string& path);
    ~Wire();

    Directory& directory() const { return *directory_; }
    const std::string& path() const { return path_; }

    // Takes a free slot (also one whose owner died) and makes its file; null with errno (ENOSPC: the wire is full).
    std::unique_ptr<StationMap> claim(uint32_t* index);
    void leave(uint32_t index);
    // A killed owner's station is off the wire, with its flow rules.
    void remove_if_dead(uint32_t index);

    // The station as it is now, null when the slot is free. Valid until this process next asks for the same index after its
    // owner changed: stale maps are kept to the end, so that a pointer in use is never unmapped.
    StationMap* station(uint32_t index);
    bool is_alive(uint32_t index) const;

  private:
    explicit Wire(std::string path) : path_(std::move(path)) {}
    std::string file_of(uint32_t index) const {
        return path_ + "/station-" + std::to_string(index);
    }
    StationMap* map_station(uint32_t index);
    void empty(uint32_t index);  // the directory's lock held

    std::string path_;
    Directory* directory_ = nullptr;
    std::mutex mutex_;  // all_, and writing maps_
    std::atomic<StationMap*> maps_[kMaxStations] = {};
    std::vector<std::unique_ptr<StationMap>> all_;
};

// Start time of a process in clock ticks since boot; 0 when there is none, or it has ended.
uint64_t process_started(uint32_t pid);

}  // namespace softhca
