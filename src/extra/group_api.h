// The functions of mellanox/xlio.h, as programs call them.
#pragma once

#include <mellanox/xlio.h>

namespace vma::extra::group {

#define GROUP(result, name, parameters, arguments) result name parameters;
#include "extra/poll_group.def"
#undef GROUP

}  // namespace vma::extra::group
