// Packets of a client that means ill, through the decoder and the dispatcher. Input: records of (descriptors, length low,
// length high, bytes); a byte of the first says which of a few sockets the descriptors are.
#include "fuzz/fuzz_check.h"
#include "support/broker_fake.h"

using namespace vma;
using namespace vma::broker;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    FakeOperations operations;
    operations.file.assign(4096, 0x5a);
    const Endpoint port{IpAddr::any_v4(), 80};
    // Fds closes what it holds; these numbers are never open in this process.
    constexpr int kBase = 1 << 20;
    for (int i = 0; i < 4; i++) {
        SocketFacts f = FakeOperations::tcp(i & 1 ? port : Endpoint{});
        f.connected = f.listening = i == 3;
        operations.doorbell_of[uint32_t(i + 100)] = kBase + i;
        operations.sockets[kBase + i] = f;
    }
    if (size == 0) return 0;
    Dispatcher dispatcher(operations, 1, data[0] & 1);
    size_t at = 1;
    while (size - at >= 3) {
        const unsigned fd_count = data[at] & 3;
        const size_t length =
            std::min<size_t>(size_t(data[at + 1]) | size_t(data[at + 2]) << 8, size - at - 3);
        Fds fds;
        for (unsigned i = 0; i < fd_count; i++) fds.add(kBase + int((data[at] >> 2) + i) % 4);
        Dispatcher::Answer answer;
        const ByteView packet(data + at + 3, length);
        Body body;
        const auto head = decode(packet, fd_count, body);
        const bool goes_on = dispatcher.message(packet, fds, answer);
        // Nothing that cannot be decoded is acted on, and every question is answered.
        FUZZ_CHECK(head || !goes_on);
        if (goes_on && head) FUZZ_CHECK(answer.send == answered(head->op));
        if (head && (head->op == Op::restore || head->op == Op::finish)) {
            const auto s = from_wire(body.repair.image.snapshot);
            FUZZ_CHECK(s.ok());
            FUZZ_CHECK(body.repair.unread == s->unread);
            FUZZ_CHECK(body.repair.unacked <= kMostQueueBytes &&
                       body.repair.unsent <= kMostQueueBytes);
            // A snapshot survives the way to the wire and back.
            const WireSnapshot again = to_wire(*s);
            FUZZ_CHECK(from_wire(again).ok());
        }
        if (head && head->op == Op::steer && goes_on) {
            // What is steered is a unicast tuple, into a ring that was opened or shown before.
            FUZZ_CHECK(can_be_asked(body.steer));
            if (answer.reply.error == 0) {
                FUZZ_CHECK(!operations.flows.empty());
                const Steer& done = operations.flows.back();
                FUZZ_CHECK(done.slot < operations.next_slot ||
                           operations.doorbell_of.contains(done.slot));
                FUZZ_CHECK(from_wire(done.local).port != 0 && done.gate < kGates);
            }
        }
        // Only what can be an end of a connection, and at an address of the namespace.
        for (const Endpoint& e : operations.published)
            FUZZ_CHECK(e.port != 0 && e.addr.is_v4() && !e.addr.is_any() &&
                       e.addr != FakeOperations::kElsewhere);
        FUZZ_CHECK(answer.fd_count == 0 || answer.send);
        at += 3 + length;
        if (!goes_on) break;
    }
    FUZZ_CHECK(dispatcher.proven().size() <= Dispatcher::kMostProven);
    return 0;
}
