// What the socket layer asks the broker for (src/broker): repairs that this process may not make, custody of what it would
// leave behind, and twins that a forked child shares. All of it is control plane, and all of it may fail: then things are
// as they are without a broker.
#pragma once

#include "base/reason.h"
#include "broker/protocol.h"
#include "engine/shard.h"

namespace vma::sock {

// From the options; once. The broker is the other mover from then on (mover.h).
void broker_configure();

// The shard is about to have TCP: from now on its connections are rescued if this process is killed. Starts the broker.
// Cheap when it is done already.
void broker_watch(Shard& shard);
// The process has a listener, on whose port connections will be its own. Starts the broker.
void broker_listener(int fd);

// Internal thread, in every turn: a broker that has ended is noticed within a second, and that of the host, once it is there,
// goes on in its place: new sockets are offloaded again, and connections rescued.
void broker_tick();

// Why the kernel serves a socket whose flow could not be steered (Ring::steer), from the errno.
Reason reason_of_steering(int error);

// This process is about to give privileges up: what needs them later is arranged now.
void broker_before_drop();
void broker_forget_in_child(int kept_door);

}  // namespace vma::sock
