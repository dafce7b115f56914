// The functions of mellanox/xlio.h as symbols of the library.
#include "extra/group_api.h"
#include "intercept/hooks.h"

namespace vma::hook {

#define GROUP(result, name, parameters, arguments)                         \
    VMA_EXPORT result xlio_##name parameters __asm__("xlio_" #name);       \
    result xlio_##name parameters { return extra::group::name arguments; } \
    VMA_ALIAS(vma_##name, xlio_##name);
#include "extra/poll_group.def"
#undef GROUP

}  // namespace vma::hook
