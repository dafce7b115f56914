// The descriptors of a new shm pair, and a neighbour that writes what it likes into the shared memory.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "dev/shm/pair.h"

namespace vma::test {

// The descriptors of both ends, opener first. Whoever opens an end closes them.
struct ShmParts {
    explicit ShmParts(uint32_t ring_bytes = shm::kLeastRingBytes) {
        const auto memory = shm::create_pair_memory(ring_bytes, nullptr);
        const auto bell0 = shm::create_bell(), bell1 = shm::create_bell();
        if (!memory || !bell0 || !bell1) return;
        end[0] = {*memory, *bell0, copy(*bell1), shm::Side::opener};
        end[1] = {copy(*memory), *bell1, copy(*bell0), shm::Side::joiner};
    }
    static int copy(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 3); }
    shm::PairParts end[2];
};

// The other end of a pair, without any of the rules: all of the memory can be written, as by whoever has the memfd.
class BadNeighbor {
  public:
    // Takes the descriptors of its end.
    explicit BadNeighbor(shm::PairParts parts) : side_(parts.side) {
        shm::Header header{};
        if (pread(parts.memory, &header, sizeof header, 0) == ssize_t(sizeof header)) {
            ring_bytes_ = header.ring_bytes;
            void* const at =
                mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, parts.memory, 0);
            if (at != MAP_FAILED) at_ = static_cast<uint8_t*>(at);
        }
        bell = parts.bell;
        victims_bell = parts.neighbor_bell;
        parts.bell = parts.neighbor_bell = -1;
        parts.close_all();
    }
    ~BadNeighbor() {
        if (at_) munmap(at_, bytes());
        close(bell);
        close(victims_bell);
    }
    BadNeighbor(const BadNeighbor&) = delete;
    BadNeighbor& operator=(const BadNeighbor&) = delete;

    bool ok() const { return at_ != nullptr; }
    uint32_t ring_bytes() const { return ring_bytes_; }
    size_t bytes() const { return shm::total_bytes(ring_bytes_); }
    uint8_t* memory() { return at_; }  // all of it
    // Records that the victim reads, once.
    uint8_t* records() { return at_ + shm::kControlBytes + (opener() ? 0 : ring_bytes_); }
    // What the victim believes of its consumer.
    shm::ConsumerWords& mine() { return opener() ? page().from_joiner : page().from_opener; }

    // A frame as an honest neighbour would put it, but for looking whether there is room.
    void put(ByteView frame, uint8_t flags = 0, uint16_t gso_size = 0) {
        const uint32_t span = shm::record_span(uint32_t(frame.size()));
        for (uint32_t i = 0; i < frame.size(); ++i)
            records()[(produced_ + shm::kWordBytes + i) & (ring_bytes_ - 1)] = frame[i];
        store_word(produced_ + span, 0);
        store_word(produced_, shm::word_of({uint32_t(frame.size()), gso_size, flags}));
        produced_ += span;
    }
    void store_word(uint64_t at, uint64_t word) {
        __atomic_store_n(reinterpret_cast<uint64_t*>(records() + (at & (ring_bytes_ - 1))), word,
                         __ATOMIC_RELEASE);
    }
    uint64_t produced() const { return produced_; }

    int bell = -1, victims_bell = -1;

  private:
    bool opener() const { return side_ == shm::Side::opener; }
    shm::ControlPage& page() { return *reinterpret_cast<shm::ControlPage*>(at_); }

    shm::Side side_;
    uint8_t* at_ = nullptr;
    uint32_t ring_bytes_ = 0;
    uint64_t produced_ = 0;
};

}  // namespace vma::test
