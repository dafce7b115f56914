// Why a connection sends nothing at the moment, for whoever looks at it from outside.
#pragma once

#include "engine/shard.h"
#include "stack/tcp/tcp.h"
#include "stats/layout.h"

namespace vma {

// The first of the reasons that counts; `n`: the connection's numbers of now. [lease]
stats::Waiting waiting_for(const Shard& shard, const TcpConnection& c, const tcp::Numbers& n);

}  // namespace vma
