// The interface by which Wireshark and tshark call capture programs (extcap(4)): each preloaded process is an interface.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace vma::capture {

// What `--extcap-interfaces` prints: the processes that have a page in `directory`.
std::string extcap_interfaces(const std::string& directory);
std::string extcap_dlts();
std::string extcap_config();
// The process of interface `name` ("vma-4711").
std::optional<uint32_t> extcap_process(const std::string& name);

}  // namespace vma::capture
