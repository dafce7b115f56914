// Network namespaces other than the one that `vmad --listen` was started in. A socket belongs for ever to the namespace that it was
// made in, also to a process that has got it from elsewhere, so what a client can show of its namespace is the socket that it
// connected with: no path, no number. Whether a client may be served there is for the policy to say.
#pragma once

#include <sys/types.h>

namespace vmad {

struct Namespace {
    bool host = true;  // the one that `vmad --listen` was started in
    uid_t owner = 0;   // the user who made the user namespace that it belongs to
    dev_t device = 0;  // of its file
    ino_t inode = 0;

    // Has it a name, as ip-netns(8) gives them, that fits the pattern?
    bool is_named(const char* pattern) const;
};

// Of a descriptor of a namespace, for one that is not the host's. False: it is none.
bool describe_namespace(int fd, Namespace& out);
// The namespace that a socket was made in, as a descriptor. -errno.
int namespace_of_socket(int socket);

}  // namespace vmad
