#include "repair/repair.h"

namespace vma {
namespace {

using M = MoveMethod;
using tcp::State;

// process-model.md section 5. A FIN of ours that is on its way or acknowledged is sent once more and acknowledged again: the
// peer has it as a duplicate. A FIN of the peer is given to the kernel as the frame that it was.
constexpr MoveMethod kMethods[] = {
    {State::CLOSED, M::twin, {}, false},
    {State::LISTEN, M::listener, {}, false},
    {State::SYN_SENT, M::never, {}, false},
    {State::SYN_RECEIVED, M::never, {}, false},
    {State::ESTABLISHED, M::restore, {}, true},
    {State::FIN_WAIT_1, M::restore, {M::shut}, true},
    {State::FIN_WAIT_2, M::restore, {M::shut}, true},
    {State::CLOSE_WAIT, M::restore, {M::peer_fin}, true},
    {State::CLOSING, M::restore, {M::shut, M::peer_fin}, true},
    {State::LAST_ACK, M::restore, {M::peer_fin, M::shut}, true},
    // A connected socket whose connection is over: the record that answers the peer stays in the shard.
    {State::TIME_WAIT, M::never, {}, false},
};

constexpr bool in_order() {
    for (unsigned i = 0; i < sizeof kMethods / sizeof *kMethods; i++)
        if (unsigned(kMethods[i].state) != i) return false;
    return sizeof kMethods / sizeof *kMethods == unsigned(State::TIME_WAIT) + 1;
}
static_assert(in_order());

}  // namespace

const MoveMethod& move_method(State state) { return kMethods[unsigned(state)]; }

}  // namespace vma
