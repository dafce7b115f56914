// What programs ask of rings. There is one for each interface, which all sockets and threads use: wishes for more of them are
// heard, and change nothing. Rings over memory of the program need the queues of a device, and are refused.
#include "extra/ring_options.h"

#include <errno.h>

#include <atomic>
#include <cstring>
#include <initializer_list>

#include "base/log.h"
#include "extra/boundary.h"
#include "extra/functions.h"
#include "extra/layouts.h"

namespace vma::extra {
namespace {

using sock::Outcome;

// Profiles differ in their type alone: one key for each, in the order of their first use. 0: not used yet.
enum class RingType : uint8_t { packet, cyclic_buffer, external_memory };
constinit std::atomic<int> g_keys[3]{};
constinit std::atomic<int> g_last_key{0};

int key_of(RingType type) {
    std::atomic<int>& key = g_keys[size_t(type)];
    int known = key.load(std::memory_order_acquire);
    if (known != 0) return known;
    const int next = g_last_key.fetch_add(1) + 1;
    return key.compare_exchange_strong(known, next) ? next : known;
}

bool type_of(uint32_t key, RingType& type) {
    for (const RingType t : {RingType::packet, RingType::cyclic_buffer, RingType::external_memory})
        if (key != 0 && key == uint32_t(g_keys[size_t(t)].load(std::memory_order_acquire))) {
            type = t;
            return true;
        }
    return false;
}

int add_profile(const vma_ring_type_attr* profile, int* key,
                std::initializer_list<RingType> types) {
    return ask_library([=] {
        if (profile == nullptr || key == nullptr) return -EINVAL;
        uint32_t type;
        std::memcpy(&type, &profile->ring_type, sizeof type);
        if (type >= types.size()) return -EINVAL;
        if (!started()) return -EOPNOTSUPP;
        *key = key_of(types.begin()[type]);
        return 0;
    });
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
int set_profile(sock::Socket& socket, uint32_t key) {
    RingType type{};
    if (!type_of(key, type)) return EINVAL;
    if (type != RingType::packet) {
        vma_log(warning, "extra",
                "fd {}: a ring of profile {} needs the queues of a device: the socket has its "
                "usual ring",
                socket.fd(), key);
        return EOPNOTSUPP;
    }
    int none = 0;
    return socket.ring_profile.compare_exchange_strong(none, int(key)) ? 0 : EINVAL;
}

}  // namespace

int add_ring_profile(vma_ring_type_attr* profile, int* key) {
    return add_profile(profile, key, {RingType::packet, RingType::external_memory});
}
int add_ring_profile_902(void* profile, int* key) {
    return add_profile(static_cast<const vma_ring_type_attr*>(profile), key,
                       {RingType::packet, RingType::cyclic_buffer, RingType::external_memory});
}

Outcome set_ring_logic(sock::Socket& socket, const void* value, socklen_t len) {
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
        if (const int error = set_profile(socket, wish.ring_profile_key))
            return Outcome::error(error);
    if (logic != RING_LOGIC_PER_INTERFACE)
        vma_log(debug, "extra", "fd {}: ring logic {} changes nothing: each interface has one ring",
                socket.fd(), logic);
    return Outcome::value(0);
}

}  // namespace vma::extra
