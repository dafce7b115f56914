// Reading a socket's cyclic buffer in the program's terms (layout 902).
#include <errno.h>

#include <cstring>

#include "extra/boundary.h"
#include "extra/functions.h"
#include "extra/layouts.h"
#include "sock/cyclic.h"
#include "sock/using.h"

namespace vma::extra {
namespace {

// Null: the socket has none.
sock::CyclicBuffer* buffer_of(const sock::Using& object) {
    sock::UdpSocket* const socket = object.udp();
    return socket ? sock::cyclic_of(*socket) : nullptr;
}

}  // namespace

int cyclic_buffer_read(int fd, void* completion, size_t min, size_t max, int flags) {
    return ask_library([=] {
        const sock::Using object{fd};
        sock::CyclicBuffer* const buffer = buffer_of(object);
        if (buffer == nullptr || completion == nullptr || flags != MSG_DONTWAIT) return -EINVAL;
        if (!buffer->claim()) return -EBUSY;
        sock::CyclicRun run;
        const int error = buffer->read(*object.udp(), fd, min, max, &run);
        buffer->release();
        if (error != 0) return -error;
        CyclicCompletion902 done{};
        std::memcpy(&done.comp_mask, completion, sizeof done.comp_mask);
        done.payload = run.bodies;
        done.payload_bytes = size_t(run.packets) * buffer->shape().stride;
        done.packets = run.packets;
        done.user_header = run.heads;
        done.user_header_bytes = run.heads ? buffer->shape().head_stride() : 0;
        if (done.comp_mask & kWantsTimestamp) done.hw_timestamp = to_timespec(run.hw_time_ns);
        std::memcpy(completion, &done, sizeof done);
        return 0;
    });
}

// No device has it registered, so there is no key.
int get_mem_info(int fd, void** addr, size_t* length, uint32_t* lkey) {
    return ask_library([=] {
        const sock::Using object{fd};
        const sock::CyclicBuffer* const buffer = buffer_of(object);
        if (buffer == nullptr || addr == nullptr || length == nullptr || lkey == nullptr)
            return -EINVAL;
        *addr = buffer->bodies();
        *length = buffer->shape().body_bytes();
        *lkey = 0;
        return 0;
    });
}

}  // namespace vma::extra
