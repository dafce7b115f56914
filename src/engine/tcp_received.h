// A frame taken apart, for the files of TcpEngine.
#pragma once

#include "engine/tcp_engine.h"

namespace vma {

// `seg.packet` holds the frame.
struct TcpEngine::Received {
    Endpoint local, remote;
    MacAddr peer_mac{};
    tcp::SegView seg;
};

}  // namespace vma
