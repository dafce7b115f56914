// Faults on command: whoever is on the wire makes an opened device fail, also one of another process (softhca_ctl).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "softhca/fabric/wire.h"

namespace softhca {

// `who`: a device's name, its MAC address or the process that has opened it; all that fit. `what`:
//   down, up              the port of that address, for all that have opened it; IBV_EVENT_PORT_ERR, _ACTIVE
//   fatal                 the device is lost to those that have it open: IBV_EVENT_DEVICE_FATAL, every queue pair is in error,
//                         what is outstanding is flushed, verbs that make or change something fail with EIO. What flow rules
//                         take is lost until they are destroyed
//   overrun send|recv     the completion queue of raw queue pairs: polling it fails from now on; IBV_EVENT_CQ_ERR
//   error send|recv [N]   the next request of raw queue pairs completes with ibv_wc_status N (4, a memory region violated,
//                         when there is none)
// Returns how many opened devices it met; *error says what is not understood.
unsigned inject_fault(Wire& wire, const std::string& who, std::span<const std::string> what,
                      std::string* error);

}  // namespace softhca
