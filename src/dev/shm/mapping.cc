#include "dev/shm/mapping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/high_fd.h"
#include "base/sys.h"

namespace vma::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status fail(std::string* why, int error, const char* what) {
    *why = fmt::format("{}: errno {}", what, error);
    return Errno{error};
}

Status refuse(std::string* why, const char* what) {
    *why = what;
    return Errno{EINVAL};
}

Status fill(int fd, uint32_t ring_bytes, std::string* why) {
    const uint64_t total = total_bytes(ring_bytes);
    rlimit limit{};
    // Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ, which kills the program: ask first.
    if (sys::raw(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, sys::ptr(&limit)) == 0 &&
        limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < total)
        return fail(why, EFBIG, "the pair's memory is larger than RLIMIT_FSIZE");
    // All pages now: one that cannot be had later is a SIGBUS instead of an error.
    if (const long r = sys::raw(SYS_fallocate, fd, 0, 0, long(total)); r < 0)
        return fail(why, int(-r), "allocating the pair's memory failed");
    const Header header{kMagic, kVersion, ring_bytes, total};
    const long written = sys::raw(SYS_pwrite64, fd, sys::ptr(&header), sizeof(header), 0);
    if (written != long(sizeof(header)))
        return fail(why, written < 0 ? int(-written) : EIO, "writing the pair's header failed");
    if (const int r = sys::fcntl(fd, F_ADD_SEALS, kSeals); r < 0)
        return fail(why, -r, "sealing the pair's memory failed");
    return {};
}

}  // namespace

Result<int> create_pair_memory(uint32_t ring_bytes, std::string* why) {
    std::string ignored;
    if (why == nullptr) why = &ignored;
    if (!usable_ring_bytes(ring_bytes)) {
        *why = fmt::format("a ring of {} bytes is not possible: a power of two from {} to {}",
                           ring_bytes, kLeastRingBytes, kMostRingBytes);
        return Errno{EINVAL};
    }
    const int fd = raised(
        int(sys::raw(SYS_memfd_create, sys::ptr("vma-pair"), MFD_CLOEXEC | MFD_ALLOW_SEALING)));
    if (fd < 0) {
        (void)fail(why, -fd, "memfd_create failed");
        return Errno{-fd};
    }
    const Status s = fill(fd, ring_bytes, why);
    if (s) return fd;
    sys::close(fd);
    return Errno{s.error()};
}

Status PairMapping::map(int memory, Side side, std::string* why) {
    std::string ignored;
    if (why == nullptr) why = &ignored;
    reset();
    const int seals = sys::fcntl(memory, F_GET_SEALS);
    if (seals < 0) return refuse(why, "the neighbour's memory is not a memfd");
    if ((seals & kSeals) != kSeals)
        return refuse(why, "the neighbour's memory is not sealed against resizing");
    // From here on its size is what it is.
    struct stat st {};
    if (const long r = sys::raw(SYS_fstat, memory, sys::ptr(&st)); r < 0)
        return fail(why, int(-r), "fstat of the neighbour's memory failed");
    Header header{};
    if (sys::raw(SYS_pread64, memory, sys::ptr(&header), sizeof(header), 0) != long(sizeof(header)))
        return refuse(why, "the neighbour's memory has no header");
    if (header.magic != kMagic) return refuse(why, "the neighbour's memory is not a pair's");
    if (header.version != kVersion) {
        *why = fmt::format("the neighbour's memory has version {}, ours is {}", header.version,
                           kVersion);
        return Errno{EINVAL};
    }
    if (!usable_ring_bytes(header.ring_bytes))
        return refuse(why, "the neighbour's ring has an impossible size");
    if (header.total_bytes != total_bytes(header.ring_bytes) ||
        uint64_t(st.st_size) != header.total_bytes)
        return refuse(why, "the neighbour's memory has another size than its header says");
    ring_bytes_ = header.ring_bytes;
    side_ = side;
    return place(memory, why);
}

// One range of addresses: control page, our records twice, the neighbour's records twice and not to be written.
Status PairMapping::place(int memory, std::string* why) {
    const size_t ring = ring_bytes_, all = kControlBytes + 4 * ring;
    void* const range =
        sys::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sys::failed(range))
        return fail(why, int(-reinterpret_cast<intptr_t>(range)), "no addresses for the pair");
    auto* const at = static_cast<uint8_t*>(range);
    const off_t first = kControlBytes, second = kControlBytes + off_t(ring);
    const off_t mine = side_ == Side::opener ? first : second,
                theirs = side_ == Side::opener ? second : first;
    struct Part {
        size_t place, bytes;
        int protection;
        off_t from;
    } const parts[] = {
        {0, kControlBytes, PROT_READ | PROT_WRITE, 0},
        {kControlBytes, ring, PROT_READ | PROT_WRITE, mine},
        {kControlBytes + ring, ring, PROT_READ | PROT_WRITE, mine},
        {kControlBytes + 2 * ring, ring, PROT_READ, theirs},
        {kControlBytes + 3 * ring, ring, PROT_READ, theirs},
    };
    for (const Part& p : parts) {
        const void* r = sys::mmap(at + p.place, p.bytes, p.protection,
                                  MAP_SHARED | MAP_FIXED | MAP_POPULATE, memory, p.from);
        if (sys::failed(r)) {
            sys::munmap(at, all);
            return fail(why, int(-reinterpret_cast<intptr_t>(r)),
                        "mapping the pair's memory failed");
        }
    }
    sys::raw(SYS_madvise, sys::ptr(at), long(all), MADV_DONTFORK);
    sys::raw(SYS_madvise, sys::ptr(at), long(all), MADV_DONTDUMP);
    at_ = at;
    return {};
}

void PairMapping::reset() {
    if (at_) sys::munmap(at_, kControlBytes + 4 * size_t(ring_bytes_));
    at_ = nullptr;
}

}  // namespace vma::shm
