// VerbsPort: the port of an RDMA device that belongs to a network interface, opened. Threads: none; the caller's.
#pragma once

#include <cstdint>
#include <string>

#include "base/own_fd.h"
#include "base/result.h"
#include "dev/verbs/library.h"

namespace vma {

// A descriptor that libibverbs keeps in one of its structures, moved out of the program's way (own_fd.h). restore() before
// the library closes it.
class MovedFd {
  public:
    Status move(int* place);
    // Before a call that uses it: the program may have taken the number (own_fd_relocate).
    void follow();
    void restore();
    int fd() const { return own_.fd(); }

  private:
    OwnFd own_;
    int* place_ = nullptr;
};

class VerbsPort {
  public:
    VerbsPort() = default;
    ~VerbsPort() { close(); }
    VerbsPort(const VerbsPort&) = delete;
    VerbsPort& operator=(const VerbsPort&) = delete;

    // Looks through the GID tables of all devices for the interface (ibv_query_gid_ex(3)). Errors: ENOSYS (no
    // libibverbs), ENODEV (no device has it), those of opening. *why: in words for the user.
    Status open(int ifindex, std::string* why);
    void close();
    void follow_fds();  // before every verb that goes to the kernel

    const VerbsLibrary& library() const { return *library_; }
    // The next event that the device has told, without waiting; false: there is none. has_event(): any thread.
    bool next_event(ibv_async_event* event);
    bool has_event() const;
    ibv_context* context() const { return context_; }
    uint8_t number() const { return number_; }
    const ibv_device_attr_ex& attributes() const { return attributes_; }
    // Frames that the device had no receive request for, since it was made. Of all its users.
    uint64_t out_of_buffer() const;

  private:
    bool has(ibv_context* context, int ifindex);

    const VerbsLibrary* library_ = nullptr;
    ibv_context* context_ = nullptr;
    uint8_t number_ = 0;
    ibv_device_attr_ex attributes_{};
    MovedFd command_, async_;
};

// Is it worth looking: does the kernel know RDMA devices, or SOFTHCA describe some (docs/SOFTHCA.md)? Cheap.
bool may_have_verbs_ports();

}  // namespace vma
