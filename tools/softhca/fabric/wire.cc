#include "softhca/fabric/wire.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace softhca {
namespace {

// A file of the wire; O_CREAT makes it for everybody, whatever the umask.
int open_file(const std::string& path, int flags) {
    const int fd = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0666);
    if (fd >= 0 && (flags & O_CREAT)) fchmod(fd, 0666);  // not ours: it has its mode already
    return fd;
}

// Removes what an owner that did not close its device has left: PREFIX-INDEX-... of the pipes.
void remove_pipes(const std::string& path, uint32_t index) {
    DIR* dir = opendir(path.c_str());
    if (!dir) return;
    const std::string middle = "-" + std::to_string(index) + "-";
    const std::string folder = path + "/";
    const std::string of_async = "async" + middle, of_channels = "channel" + middle;
    while (const dirent* e = readdir(dir)) {
        const std::string name = e->d_name;
        if (name.starts_with(of_async) || name.starts_with(of_channels))
            ::unlink((folder + name).c_str());
    }
    closedir(dir);
}

}  // namespace

uint64_t process_started(uint32_t pid) {
    char name[64], text[1024];
    std::snprintf(name, sizeof(name), "/proc/%u/stat", pid);
    const int fd = ::open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t n = ::read(fd, text, sizeof(text) - 1);
    ::close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    const char* p = std::strrchr(text, ')');  // the program's name may hold anything
    if (!p) return 0;
    char state = 0;
    int threads = 0;
    unsigned long long started = 0;
    // Field 3, then 20 and 22 (proc(5)).
    if (std::sscanf(
            p + 1,
            " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d %*s %llu",
            &state, &threads, &started) != 3)
        return 0;
    // Ended, and its parent has not asked yet. A first thread that has left the others looks the same but for their number.
    if (state == 'Z' && threads <= 1) return 0;
    return started;
}

StationMap::~StationMap() {
    if (base_) munmap(base_, kStationBytes);
}

bool StationMap::map(int fd) {
    void* p =
        mmap(nullptr, kStationBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) return false;
    base_ = static_cast<char*>(p);
    return true;
}

std::unique_ptr<Wire> Wire::open(const std::string& path) {
    if (mkdir(path.c_str(), 0777) < 0 && errno != EEXIST) return nullptr;
    chmod(path.c_str(), 0777);
    const int fd = open_file(path + "/directory", O_CREAT);
    if (fd < 0) return nullptr;
    std::unique_ptr<Wire> wire(new Wire(path));
    flock(fd, LOCK_EX);  // one maker; the mapping keeps the file open, so close() would not unlock
    void* p = MAP_FAILED;
    if (ftruncate(fd, sizeof(Directory)) == 0)
        p = mmap(nullptr, sizeof(Directory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) {
        wire->directory_ = static_cast<Directory*>(p);
        uint32_t version = 0;  // a new file is all zeros, which is an empty directory
        if (!wire->directory_->version.compare_exchange_strong(version, kLayoutVersion) &&
            version != kLayoutVersion) {
            errno = EPROTO;  // of another build
            p = MAP_FAILED;
        }
    }
    flock(fd, LOCK_UN);
    ::close(fd);
    return p == MAP_FAILED ? nullptr : std::move(wire);
}

Wire::~Wire() {
    if (directory_) munmap(directory_, sizeof(Directory));
}

bool Wire::is_alive(uint32_t index) const {
    const StationSlot& slot = directory_->slots[index];
    const uint32_t pid = slot.pid.load(std::memory_order_acquire);
    return pid != 0 && process_started(pid) == slot.started.load(std::memory_order_relaxed);
}

std::unique_ptr<StationMap> Wire::claim(uint32_t* index) {
    SharedLocked locked(directory_->lock);
    for (uint32_t i = 1; i < kMaxStations; i++) {  // QP numbers of station 0 would be small
        StationSlot& slot = directory_->slots[i];
        if (slot.pid.load() != 0 && is_alive(i)) continue;
        slot.ready = false;
        slot.raw = false;
        ::unlink(file_of(i).c_str());
        remove_pipes(path_, i);
        const int fd = open_file(file_of(i), O_CREAT | O_EXCL);
        if (fd < 0) return nullptr;
        auto map = std::make_unique<StationMap>();
        const bool mapped = ftruncate(fd, off_t(kStationBytes)) == 0 && map->map(fd);
        ::close(fd);
        if (!mapped) return nullptr;
        slot.started = process_started(own_pid());
        slot.pid.store(own_pid(), std::memory_order_release);
        map->generation = slot.generation.fetch_add(1) + 1;
        *index = i;
        return map;
    }
    errno = ENOSPC;
    return nullptr;
}

void Wire::leave(uint32_t index) {
    SharedLocked locked(directory_->lock);
    empty(index);
}

void Wire::remove_if_dead(uint32_t index) {
    SharedLocked locked(directory_->lock);
    if (directory_->slots[index].pid.load() == 0 || is_alive(index)) return;
    empty(index);
    remove_pipes(path_, index);
}

void Wire::empty(uint32_t index) {
    StationSlot& slot = directory_->slots[index];
    slot.ready = false;
    slot.raw = false;
    slot.generation.fetch_add(1);
    slot.pid.store(0, std::memory_order_release);
    directory_->flow_generation.fetch_add(1, std::memory_order_release);
    ::unlink(file_of(index).c_str());
}

StationMap* Wire::station(uint32_t index) {
    if (index >= kMaxStations) return nullptr;
    const StationSlot& slot = directory_->slots[index];
    if (!slot.ready.load(std::memory_order_acquire)) return nullptr;
    StationMap* map = maps_[index].load(std::memory_order_acquire);
    if (map && map->generation == slot.generation.load(std::memory_order_relaxed)) return map;
    return map_station(index);
}

StationMap* Wire::map_station(uint32_t index) {
    std::lock_guard locked(mutex_);
    const uint32_t generation = directory_->slots[index].generation.load();
    const int fd = open_file(file_of(index), 0);
    if (fd < 0) return nullptr;
    auto map = std::make_unique<StationMap>();
    const bool mapped = map->map(fd);
    ::close(fd);
    if (!mapped || directory_->slots[index].generation.load() != generation) return nullptr;
    map->generation = generation;
    all_.push_back(std::move(map));
    maps_[index].store(all_.back().get(), std::memory_order_release);
    return all_.back().get();
}

}  // namespace softhca
