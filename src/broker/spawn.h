// Starts the broker: a process that the program does not notice. It is nobody's child (the one in between is reaped here, by
// a wait that no wait() of the program shares), sends no SIGCHLD, has a session of its own, no descriptor of the program's,
// and none of its environment. Exception: a program that is a subreaper or pid 1 becomes its parent like everybody's.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace vma::broker {

inline constexpr int kBrokerSocket = 3;  // its end of the door, in the broker

// Where the host's broker (vmad --listen) waits for processes that could not start their own.
inline constexpr char kHostSocket[] = "/run/vma/vmad.sock";

// The executable that belongs to this library, into `out`: `wished` if it is not empty, else ../bin/vmad or vmad beside the
// library's file, or where the packages install it. False: there is none that may be run.
bool find_broker(const char* wished, char* out, size_t room);

// Runs it and returns our end of the door (CLOEXEC), or why not. Returns when it has been executed, without waiting for
// anything it does. The calling thread only; other threads go on. argv after the name: "--broker for <pid> <program>".
Result<int> spawn_broker(const char* path, const char* program);

// Our end of a door to the host's broker, which root must run. ENOENT: there is none; EACCES: it does not serve this user.
Result<int> knock_at_host_broker();

// exec() takes capabilities away from everybody but root. After this it does not.
void keep_capabilities();

// Does the calling thread have CAP_NET_ADMIN now, over the network that its sockets are of? One system call.
bool has_net_admin();
// The same, and over the machine: in a user namespace nobody may load a program for a ring, also where the network is its own.
bool has_net_admin_of_host();
// The process is in a user namespace of its own from now on: it has all capabilities there, and none here.
void capabilities_are_of_another_namespace();
// CAP_SYS_ADMIN: a broker that is started with it can open rings for others.
bool has_sys_admin();

}  // namespace vma::broker
