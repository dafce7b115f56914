// The socket at which vmad waits for the processes of a host.
#pragma once

#include <string>

namespace vmad {

// Who wants to be served must be able to write to the socket: root, and the members of `group` if it is not empty. What a
// process that has ended left under the name is replaced. -1 and *why.
int listen_at(const std::string& path, const std::string& group, std::string* why);
// The socket that systemd has passed (sd_listen_fds(3)); -1: none, or none of this kind.
int passed_listener();

}  // namespace vmad
