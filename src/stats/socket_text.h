// A socket as lines of text: view 3 of vma_stats, and what VMA_STATS_FILE gets when a socket is closed. The lines are those
// that VMA's users know; those whose counters are all zero are left out.
#pragma once

#include <cstddef>

#include "stats/layout.h"

namespace vma::stats {

inline constexpr char kSocketSeparator[] =
    "======================================================\n";
// Bytes that are enough for any socket.
inline constexpr size_t kSocketTextRoom = 2048;

// Writes at most `room` bytes, no NUL, and returns how many. No malloc.
size_t socket_text(char* out, size_t room, const SocketIdentity& id, const SocketNumbers& n,
                   const TcpNumbers& tcp);
const char* tcp_state_text(unsigned state);  // SocketIdentity::tcp_state: "ESTABLISHED"
// "10.1.1.5:7001", "[fe80::1%2]:80", "0.0.0.0:*" and a NUL; room: 72 bytes.
char* endpoint_text(char* out, const Endpoint& endpoint);

}  // namespace vma::stats
