// Packets with descriptors over a SOCK_SEQPACKET socket; both ends of the protocol use it. Raw calls only, no allocation.
#pragma once

#include "base/descriptor_message.h"
#include "base/result.h"
#include "broker/protocol.h"

namespace vma::broker {

// A message whose body is body_bytes(op) long. MSG_DONTWAIT; errors of sendmsg(2).
Status send_message(int socket, Op op, uint32_t serial, const void* body, size_t bytes,
                    std::span<const int> fds = {});

// The next packet into `buffer`; its length, 0: the other side is gone. EMSGSIZE: it, or its descriptors, did not fit
// (they are closed). EAGAIN: there is none.
Result<size_t> receive_packet(int socket, ByteSpan buffer, Fds& fds);

// Waits until `socket` has a packet or has ended; false when `timeout_ms` passed first.
bool wait_readable(int socket, int timeout_ms);
// The same for room to send.
bool wait_writable(int socket, int timeout_ms);
// Has the other end been closed? Does not wait.
bool has_ended(int socket);

}  // namespace vma::broker
