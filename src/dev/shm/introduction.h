// Introduction: how processes of different network namespaces become neighbours. Each has a link, a SOCK_SEQPACKET unix socket to the
// broker of the host (vmad), which knows who has published what and whom the policy puts together.
//
//   seeker                     broker                      the one who has published
//   seek endpoint       -->
//                       <--  met, a channel  |  met, the other end of it  -->
//                       <--  answer
//   show, its socket    -->  answer           (offer by the channel)
//                                             <--  prove, its socket
//                                             answer  -->
//   prove, its socket   -->  answer           (accept by the channel)
//
// A channel is what a connection to a neighbour's name is in one namespace; from there on everything goes as there (handshake.h). `show`
// and `prove` are about one connection each: the broker reads in both sockets what only the two ends of one connection have in common
// (repair_first_bytes), and says to each of the two that the other has it. Every message but met and forget is a question or its answer.
// Host byte order: one machine.
#pragma once

#include <cstdint>

#include "base/ip_addr.h"

namespace vma::shm {

enum class LinkWord : uint32_t {
    seek = 1,  // `endpoint`: who accepts there, beside whom the seeker has met already?
    show,  // one descriptor: the socket of a connection that is about to be offered. Forgets what the other side has shown of it
    prove,   // one descriptor: the socket of a connection that the other side has shown
    forget,  // the channel of the introduction has ended. No answer
    met,  // one descriptor: a channel. Of the seeker `endpoint` is what he sought, else it is zero
    answer,  // `error`: 0; ENOENT: nobody new, or no such introduction; EACCES: no proof; others: the socket is of no use
};

struct LinkMessage {
    static constexpr uint64_t kMagic = 0x564d41'6c696e6bull;
    uint64_t magic = kMagic;
    uint32_t version = 1;
    LinkWord word{};
    uint32_t serial = 0;  // of a question, and of its answer
    int32_t error = 0;
    uint64_t introduction = 0;  // of show, prove, forget and met
    uint32_t address = 0;       // host order
    uint16_t port = 0;
    uint16_t zero = 0;

    Endpoint endpoint() const { return {IpAddr::v4(address), port}; }
};
static_assert(sizeof(LinkMessage) == 40);

}  // namespace vma::shm
