// Writer of the pcapng format (draft-ietf-opsawg-pcapng): one section, one interface description for each interface, enhanced
// packet blocks with direction and comment. To any descriptor: a file, a pipe, a fifo.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vma::capture {

class PcapngWriter {
  public:
    explicit PcapngWriter(int fd) : fd_(fd) {}  // borrowed

    // Each: false when the descriptor does not take it (errno says why; EPIPE: the reader has gone).
    bool begin(std::string_view application);
    // Interfaces are numbered from 0 in the order in which they are added.
    bool add_interface(std::string_view name, std::string_view description);
    // `inbound` as seen from the process; `comment` empty: none.
    bool packet(uint32_t interface, int64_t time_ns, std::string_view frame, bool inbound,
                std::string_view comment);

  private:
    bool write_block(uint32_t type);
    void put32(uint32_t value);
    void put16(uint16_t value);
    void padded(std::string_view bytes);
    void option(uint16_t code, std::string_view value);
    int fd_;
    std::string body_;  // of the block being made
};

}  // namespace vma::capture
