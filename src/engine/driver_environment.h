// What the user-space drivers of RDMA devices read from the environment.
#pragma once

#include "config/options.h"

namespace vma {

// Before libibverbs is loaded; once per process. What the settings do not say, a driver decides; where VMA leaves the program's
// own value alone, so does this.
void set_driver_environment(const Options& options);

}  // namespace vma
