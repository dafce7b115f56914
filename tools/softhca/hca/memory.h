// Memory regions: what a key allows, and copying between the processes of the wire.
#pragma once

#include <sys/uio.h>

#include <optional>

#include "softhca/fabric/wire.h"

namespace softhca {

// The address in the owner's process that `key` stands for, if the region is of `pd`, covers [iova, iova + length) and allows
// all of `access`.
std::optional<uint64_t> translate(const Station& owner, uint32_t key, uint32_t pd, uint64_t iova,
                                  uint64_t length, uint32_t access);

// Translates a scatter/gather list into `out`; empty when one element is not allowed. *bytes: their sum.
bool translate_list(const Station& owner, uint32_t pd, const ibv_sge* list, uint32_t count,
                    uint32_t access, iovec* out, uint64_t* bytes);

// Copies min(both) bytes; one of the two processes must be this one. False when memory or the process is gone.
bool copy_between(uint32_t to_pid, const iovec* to, uint32_t to_count, uint32_t from_pid,
                  const iovec* from, uint32_t from_count);

}  // namespace softhca
