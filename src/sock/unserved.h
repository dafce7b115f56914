// VMA_EXCEPTION_HANDLING: what becomes of a socket when the program asks for something that only the kernel has.
#pragma once

#include <string_view>

#include "sock/socket.h"

namespace vma::sock {

enum class Unserved : uint8_t {
    hand_back,  // the kernel goes on with the socket
    stay,       // the kernel socket is told and the stack goes on without it
    refuse,     // EINVAL
};
Unserved unserved();
// Tells the log; with VMA_EXCEPTION_HANDLING=3 the program ends here. `what`: "socket option level 1 name 5".
void tell_unserved(int fd, std::string_view what);
// Both, and hands the socket back where that is what becomes of it. True: the request is refused.
bool refuse_unserved(Socket& socket, int fd, std::string_view what);

}  // namespace vma::sock
