#include "capture/pcapng.h"

#include <errno.h>
#include <unistd.h>

namespace vma::capture {
namespace {

constexpr uint32_t kSection = 0x0a0d0d0a, kInterface = 1, kPacket = 6;
constexpr uint32_t kByteOrder = 0x1a2b3c4d;
constexpr uint16_t kEthernet = 1;  // LINKTYPE_ETHERNET
constexpr uint16_t kEndOfOptions = 0, kComment = 1;
constexpr uint16_t kApplication = 4;                                  // of a section
constexpr uint16_t kName = 2, kDescription = 3, kTimeResolution = 9;  // of an interface
constexpr uint16_t kFlags = 2;                                        // of a packet
constexpr uint8_t kNanoseconds = 9;

}  // namespace

void PcapngWriter::put32(uint32_t value) {
    body_.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void PcapngWriter::put16(uint16_t value) {
    body_.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void PcapngWriter::padded(std::string_view bytes) {
    body_ += bytes;
    body_.append((4 - bytes.size() % 4) % 4, '\0');
}
void PcapngWriter::option(uint16_t code, std::string_view value) {
    put16(code);
    put16(uint16_t(value.size()));
    padded(value);
}

bool PcapngWriter::write_block(uint32_t type) {
    const auto length = uint32_t(12 + body_.size());
    std::string block;
    block.reserve(length);
    block.append(reinterpret_cast<const char*>(&type), 4);
    block.append(reinterpret_cast<const char*>(&length), 4);
    block += body_;
    block.append(reinterpret_cast<const char*>(&length), 4);
    body_.clear();
    for (size_t at = 0; at < block.size();) {
        const ssize_t n = write(fd_, block.data() + at, block.size() - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += size_t(n);
    }
    return true;
}

bool PcapngWriter::begin(std::string_view application) {
    put32(kByteOrder);
    put16(1);  // version 1.0
    put16(0);
    put32(UINT32_MAX);  // section length: not known
    put32(UINT32_MAX);
    option(kApplication, application);
    option(kEndOfOptions, "");
    return write_block(kSection);
}

bool PcapngWriter::add_interface(std::string_view name, std::string_view description) {
    put16(kEthernet);
    put16(0);
    put32(0);  // no limit of the captured length
    option(kName, name);
    option(kDescription, description);
    option(kTimeResolution, std::string_view(reinterpret_cast<const char*>(&kNanoseconds), 1));
    option(kEndOfOptions, "");
    return write_block(kInterface);
}

bool PcapngWriter::packet(uint32_t interface, int64_t time_ns, std::string_view frame, bool inbound,
                          std::string_view comment) {
    put32(interface);
    put32(uint32_t(uint64_t(time_ns) >> 32));
    put32(uint32_t(time_ns));
    put32(uint32_t(frame.size()));
    put32(uint32_t(frame.size()));
    padded(frame);
    const uint32_t flags = inbound ? 1 : 2;
    option(kFlags, std::string_view(reinterpret_cast<const char*>(&flags), sizeof flags));
    if (!comment.empty()) option(kComment, comment);
    option(kEndOfOptions, "");
    return write_block(kPacket);
}

}  // namespace vma::capture
