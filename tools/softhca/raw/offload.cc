#include "softhca/raw/offload.h"

#include <netinet/in.h>

#include "softhca/raw/fields.h"
#include "wire/checksum.h"

namespace softhca {
namespace {

using namespace vma;

uint32_t ip_offset(const FlowFields& f) { return f.has_vlan ? 18 : 14; }

// Bytes of transport header and payload by the IP header; 0 when the frame is shorter than it says.
uint32_t transport_bytes(ByteView frame, const FlowFields& f, uint32_t l4) {
    const uint32_t ip = ip_offset(f);
    const uint32_t end =
        f.ip_version == 4 ? ip + load_be16(&frame[ip + 2]) : ip + 40u + load_be16(&frame[ip + 4]);
    return end > l4 ? end - l4 : 0;
}

void add_pseudo(Checksum& sum, const FlowFields& f, uint32_t bytes) {
    const uint32_t address = f.ip_version == 4 ? 4 : 16;
    sum.add(ByteView(f.src_ip, address));
    sum.add(ByteView(f.dst_ip, address));
    sum.add_be32(bytes);
    sum.add_be16(f.protocol);
}

}  // namespace

bool write_checksums(uint8_t* head, size_t head_len, const FlowFields& f, uint32_t l4,
                     const iovec* rest, uint32_t rest_count) {
    const uint32_t ip = ip_offset(f);
    if (f.ip_version == 4) {
        const uint32_t ip_len = (head[ip] & 15) * 4u;
        if (ip_len < 20 || ip + ip_len > head_len) return false;
        store_be16(head + ip + 10, 0);
        store_be16(head + ip + 10, checksum(ByteView(head + ip, ip_len)));
    }
    const uint32_t field = l4 + (f.protocol == IPPROTO_TCP ? 16 : 6);
    if (!l4 || field + 2 > head_len) return false;
    uint32_t left = transport_bytes(ByteView(head, head_len), f, l4);
    store_be16(head + field, 0);
    Checksum sum;
    add_pseudo(sum, f, left);
    const auto add = [&](const uint8_t* p, size_t n) {
        n = n < left ? n : left;  // not the padding of a short frame
        sum.add(ByteView(p, n));
        left -= uint32_t(n);
    };
    add(head + l4, head_len - l4);
    for (uint32_t i = 0; i < rest_count; i++)
        add(static_cast<const uint8_t*>(rest[i].iov_base), rest[i].iov_len);
    uint16_t result = sum.finish();
    if (f.protocol == IPPROTO_UDP && result == 0) result = 0xffff;  // RFC 768: zero would mean none
    store_be16(head + field, result);
    return left == 0;
}

bool checksums_good(ByteView frame) {
    FlowFields f;
    uint32_t l4;
    read_fields(frame, &f, &l4);
    const uint32_t ip = ip_offset(f);
    if (!l4) return false;
    if (f.ip_version == 4 &&
        (l4 < ip + 20 || l4 > frame.size() || checksum(frame.subspan(ip, l4 - ip)) != 0))
        return false;
    const uint32_t bytes = transport_bytes(frame, f, l4);
    if (bytes < 8 || l4 + bytes > frame.size()) return false;
    if (f.protocol == IPPROTO_UDP && f.ip_version == 4 && load_be16(&frame[l4 + 6]) == 0)
        return true;
    Checksum sum;
    add_pseudo(sum, f, bytes);
    sum.add(frame.subspan(l4, bytes));
    return sum.finish() == 0;
}

void make_segment(uint8_t* head, uint32_t head_len, const FlowFields& f, uint32_t l4, uint32_t done,
                  uint32_t bytes, uint32_t mss, bool last) {
    constexpr uint8_t kFin = 0x01, kPsh = 0x08, kCwr = 0x80;
    const uint32_t ip = ip_offset(f);
    if (f.ip_version == 4) {
        store_be16(head + ip + 2, uint16_t(head_len - ip + bytes));
        store_be16(head + ip + 4, uint16_t(load_be16(head + ip + 4) + done / mss));
    } else {
        store_be16(head + ip + 4, uint16_t(head_len - ip - 40 + bytes));
    }
    store_be32(head + l4 + 4, load_be32(head + l4 + 4) + done);
    uint8_t& flags = head[l4 + 13];
    if (!last) flags &= uint8_t(~(kFin | kPsh));
    if (done) flags &= uint8_t(~kCwr);
}

}  // namespace softhca
