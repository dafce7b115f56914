// Sockets follow the network: what a change of links, addresses, routes, neighbours or the kernel's policy means for them.
#pragma once

namespace vma::sock {

// Internal thread: looks at every socket of this process when something has changed, and keeps neighbours fresh that were
// used lately.
void follow_network();

}  // namespace vma::sock
