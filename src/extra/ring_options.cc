// What programs ask of rings: which of them a socket has (sock/socket_rings.h). A cyclic buffer is made over whatever rings a
// socket has; a ring over memory that the program sends from is a pair of queues of its own beside the socket's ring, and
// needs one of a device.
#include "extra/ring_options.h"

#include <errno.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "base/log.h"
#include "engine/placement.h"
#include "engine/runtime.h"
#include "extra/boundary.h"
#include "extra/functions.h"
#include "extra/layouts.h"
#include "sock/cyclic.h"

namespace vma::extra {
namespace {

using sock::Outcome;

enum class RingType : uint8_t { packet, cyclic_buffer, external_memory };

// Key 1 is the first. Profiles are never changed or forgotten, and equal ones are the same one.
struct Profile {
    RingType type;
    RingProfile902 cyclic;  // of a cyclic buffer, else all zero
    bool operator==(const Profile&) const = default;
};
constexpr unsigned kMostProfiles = 64;
constinit std::atomic<const Profile*> g_profiles[kMostProfiles]{};

// 0: there are too many.
int key_of(const Profile& profile) {
    for (unsigned i = 0; i < kMostProfiles; i++) {
        const Profile* known = g_profiles[i].load(std::memory_order_acquire);
        if (known == nullptr) {
            const auto* mine = new (std::nothrow) Profile(profile);
            if (mine == nullptr) return 0;
            if (g_profiles[i].compare_exchange_strong(known, mine)) return int(i) + 1;
            delete mine;
        }
        if (*known == profile) return int(i) + 1;
    }
    return 0;
}

const Profile* profile_of(uint32_t key) {
    if (key == 0 || key > kMostProfiles) return nullptr;
    return g_profiles[key - 1].load(std::memory_order_acquire);
}

int add_profile(const Profile& profile, int* key) {
    if (!started()) return -EOPNOTSUPP;
    const int number = key_of(profile);
    if (number == 0) return -ENOMEM;
    *key = number;
    return 0;
}

// Where the bytes of a datagram go in each mode.
sock::CyclicShape shape_of(const RingProfile902& wish) {
    using Headers = sock::CyclicShape::Headers;
    const uint32_t user = wish.cyclic_mask & kHasUserHeader ? wish.user_header_bytes : 0;
    sock::CyclicShape shape;
    shape.elements = wish.elements;
    switch (wish.mode) {
        case kRawPacket:
            shape.most = user + wish.stride_bytes;
            shape.stride = sock::kCyclicHeaders + shape.most;
            shape.headers = Headers::in_front;
            break;
        case kPaddedPacket:
            shape.most = user + wish.stride_bytes;
            shape.stride = std::bit_ceil(shape.most);
            break;
        default:
            shape.user_bytes = user;
            shape.stride = shape.most = wish.stride_bytes;
            if (wish.mode == kSeparateHeaders) shape.headers = Headers::apart;
    }
    return shape;
}

bool is_logic(uint32_t logic) {
    switch (logic) {
        case RING_LOGIC_PER_INTERFACE:
        case RING_LOGIC_PER_IP:
        case RING_LOGIC_PER_SOCKET:
        case RING_LOGIC_PER_USER_ID:
        case RING_LOGIC_PER_THREAD:
        case RING_LOGIC_PER_CORE:
        case RING_LOGIC_PER_CORE_ATTACH_THREADS:
            return true;
        default:
            return false;
    }
}

// 0, or an errno.
int make_cyclic(sock::UdpSocket& socket, const RingProfile902& wish) {
    iovec memory{};
    if (wish.cyclic_mask & kOwnMemory) {
        memory = sock::offered_ring_memory(socket);
        if (memory.iov_base == nullptr) return EINVAL;
    }
    auto made = sock::CyclicBuffer::make(shape_of(wish), memory);
    if (!made) return made.error();
    sock::give_cyclic(socket, std::move(*made));
    return 0;
}

// 0, or an errno.
int set_profile(const sock::Using& object, uint32_t key) {
    sock::Socket& socket = *object.socket();
    const Profile* const profile = profile_of(key);
    if (profile == nullptr) return EINVAL;
    const bool cyclic = profile->type == RingType::cyclic_buffer;
    const bool impossible = cyclic ? object.udp() == nullptr
                                   : profile->type == RingType::external_memory &&
                                         !may_have_device_queues(Runtime::options());
    if (impossible) {
        vma_log(warning, "extra",
                "fd {}: a ring of profile {} needs {}: the socket has its usual ring", socket.fd(),
                key, cyclic ? "datagrams" : "the queues of a device");
        return EOPNOTSUPP;
    }
    int none = 0;
    if (!socket.ring_profile.compare_exchange_strong(none, int(key))) return EINVAL;
    const int error = cyclic ? make_cyclic(*object.udp(), profile->cyclic) : 0;
    if (error != 0) socket.ring_profile.store(0);
    return error;
}

}  // namespace

bool sends_by_program(const sock::Socket& socket) {
    const Profile* const profile = profile_of(uint32_t(socket.ring_profile.load()));
    return profile != nullptr && profile->type == RingType::external_memory;
}

int add_ring_profile(vma_ring_type_attr* profile, int* key) {
    return ask_library([=] {
        if (profile == nullptr || key == nullptr) return -EINVAL;
        uint32_t type;
        std::memcpy(&type, &profile->ring_type, sizeof type);
        if (type > VMA_RING_EXTERNAL_MEM) return -EINVAL;
        return add_profile(
            {type == VMA_RING_PACKET ? RingType::packet : RingType::external_memory, {}}, key);
    });
}
int add_ring_profile_902(void* profile, int* key) {
    return ask_library([=] {
        if (profile == nullptr || key == nullptr) return -EINVAL;
        // Only a cyclic buffer has more than the first word of the union.
        uint32_t type;
        std::memcpy(&type, static_cast<char*>(profile) + offsetof(RingProfile902, ring_type),
                    sizeof type);
        if (type > uint32_t(RingType::external_memory)) return -EINVAL;
        Profile wish{RingType(type), {}};
        if (wish.type == RingType::cyclic_buffer) {
            RingProfile902& c = wish.cyclic;
            std::memcpy(&c, profile, sizeof c);
            if (c.elements == 0 || c.stride_bytes == 0 || c.mode > kPaddedPacket) return -EINVAL;
        }
        return add_profile(wish, key);
    });
}

Outcome set_ring_logic(const sock::Using& object, const void* value, socklen_t len) {
    constexpr uint32_t kKnown = VMA_RING_ALLOC_MASK_RING_PROFILE_KEY |
                                VMA_RING_ALLOC_MASK_RING_USER_ID |
                                VMA_RING_ALLOC_MASK_RING_INGRESS | VMA_RING_ALLOC_MASK_RING_ENGRESS;
    vma_ring_alloc_logic_attr wish;
    if (len != sizeof wish) return Outcome::error(EINVAL);
    std::memcpy(&wish, value, sizeof wish);
    uint32_t logic;
    std::memcpy(&logic, &wish.ring_alloc_logic, sizeof logic);
    if ((wish.comp_mask & kKnown) == 0 || !is_logic(logic)) return Outcome::error(EINVAL);
    if (wish.comp_mask & VMA_RING_ALLOC_MASK_RING_PROFILE_KEY)
        if (const int error = set_profile(object, wish.ring_profile_key))
            return Outcome::error(error);
    const auto counts = [&](uint32_t field) { return (wish.comp_mask & field) != 0; };
    const bool receiving = counts(VMA_RING_ALLOC_MASK_RING_INGRESS) && wish.ingress;
    const bool sending = counts(VMA_RING_ALLOC_MASK_RING_ENGRESS) && wish.engress;
    const uint32_t user = counts(VMA_RING_ALLOC_MASK_RING_USER_ID) ? wish.user_id : 0;
    object.socket()->rings.wish(RingLogic(logic), user, receiving, sending);
    return Outcome::value(0);
}

}  // namespace vma::extra
