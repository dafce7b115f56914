// Messages of a neighbour to both ends of a handshake. Input: [side][kinds of two descriptors][length][bytes]...; side bit 0: to
// the joiner or to the opener, bit 1: mend magic, version, cookie and reserved field, bit 2: the joiner welcomes. Kinds, four
// bits each: 0 none, 1 memory, 2 bell, 3 eventfd, 4 unsealed memfd, 5 socket.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/descriptor_message.h"
#include "dev/shm/handshake.h"
#include "fuzz/fuzz_check.h"

using namespace vma;
using namespace vma::shm;

namespace {

int make(unsigned kind) {
    switch (kind) {
        case 1: {
            const auto memory = create_pair_memory(kLeastRingBytes, nullptr);
            return memory ? *memory : -1;
        }
        case 2: {
            const auto bell = create_bell();
            return bell ? *bell : -1;
        }
        case 3:
            return eventfd(0, EFD_CLOEXEC);
        case 4:
            return memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        case 5:
            return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        default:
            return -1;
    }
}

void send_raw(int socket, uint8_t side, uint8_t kinds, ByteView bytes) {
    uint8_t room[sizeof(HandshakeMessage) + 16] = {};
    const size_t n = std::min(bytes.size(), sizeof room);
    if (n > 0) std::memcpy(room, bytes.data(), n);
    if (side & 2) {
        HandshakeMessage m{};
        std::memcpy(&m, room, sizeof m);
        m.magic = kHandshakeMagic;
        m.version = kVersion;
        m.namespace_cookie = 7;
        m.reserved = 0;
        m.kind &= 3;
        std::memcpy(room, &m, sizeof m);
    }
    const iovec part{room, side & 2 ? sizeof(HandshakeMessage) : n};
    int fds[2];
    unsigned count = 0;
    for (unsigned kind : {kinds & 15u, kinds >> 4 & 15u}) {
        const int fd = make(kind);
        if (fd >= 0) fds[count++] = fd;
    }
    (void)send_with_fds(socket, {&part, 1}, {fds, count});
    for (unsigned i = 0; i < count; ++i) close(fds[i]);
}

void whole(PairParts parts, Side side) {
    FUZZ_CHECK(parts.memory >= 0 && parts.bell >= 0 && parts.neighbor_bell >= 0 &&
               parts.side == side);
    Pair pair;  // the memory may still be refused: it is the mapping's to judge
    (void)pair.open(parts, nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    for (int round = 0; round < 4 && size >= 3; ++round) {
        const uint8_t side = data[0], kinds = data[1];
        const size_t n = std::min<size_t>(size - 3, data[2]);
        int ends[2];
        FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
        std::string why;
        if (side & 1) {
            send_raw(ends[0], side, kinds, {data + 3, n});
            Joiner joiner;
            const auto who = joiner.hello(ends[1], {{{1, 1}}, 7}, &why);
            FUZZ_CHECK(who.ok() || !why.empty());
            const auto parts = side & 4 ? joiner.welcome(ends[1], &why) : Errno{EAGAIN};
            FUZZ_CHECK(!parts || who);
            if (parts) whole(*parts, Side::joiner);
        } else {
            Opener opener;
            FUZZ_CHECK(opener.hello(ends[0], {{{1, 1}}, 7}, kLeastRingBytes, &why));
            send_raw(ends[1], side, kinds, {data + 3, n});
            const auto parts = opener.answer(ends[0], nullptr, &why);
            FUZZ_CHECK(parts.ok() || !why.empty());
            if (parts) whole(*parts, Side::opener);
        }
        close(ends[0]);
        close(ends[1]);
        data += 3 + n;
        size -= 3 + n;
    }
    return 0;
}
