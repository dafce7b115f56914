// libefa.so.1 for programs that are linked with it (perftest): none of the devices is an EFA one.
#include <infiniband/efadv.h>

#include "softhca/abi/exported.h"

EXPORTED int efadv_query_device(ibv_context*, efadv_device_attr*, uint32_t) { return EOPNOTSUPP; }
EXPORTED ibv_qp* efadv_create_qp_ex(ibv_context*, ibv_qp_init_attr_ex*, efadv_qp_init_attr*,
                                    uint32_t) {
    errno = EOPNOTSUPP;
    return nullptr;
}
