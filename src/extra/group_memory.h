// Received text that programs have by way of polling groups: pieces of a ring's packets (sock/xtreme.h), and copies of what
// came by the kernel. Any thread.
#pragma once

#include <mellanox/xlio.h>

namespace vma::extra::group {

// Memory of copies: a fixed number, so that what a program does not give back stays with the kernel, which closes the window.
struct ReceiveCopy {
    static constexpr size_t kBytes = 16 * 1024;
    xlio_buf buf;
    ReceiveCopy* next_free;
    static constexpr size_t kRoom = kBytes - sizeof(buf) - sizeof(next_free);
    unsigned char text[kRoom];
};
static_assert(sizeof(ReceiveCopy) == ReceiveCopy::kBytes);

class ReceiveMemory {
  public:
    // Once. False: it is set already.
    static bool set(const xlio_init_attr& attr);
    // Tells the program of memory that it has not been told of. Outside the library.
    static void announce();
    // Null: all are out, or there is no memory.
    static ReceiveCopy* take_copy();
    static void give_back(xlio_buf* buf);
};

}  // namespace vma::extra::group
