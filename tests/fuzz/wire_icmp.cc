// An ICMP message: with the sum as it came, and with a right one, which a fuzzer would hardly find.
#include <algorithm>
#include <vector>

#include "fuzz/fuzz_check.h"
#include "wire/icmp.h"

using namespace vma;

namespace {

void check(ByteView message) {
    const Parsed<IcmpErrorView> v = parse_icmp_error(message);
    if (!v) return;
    FUZZ_CHECK(v->quoted.payload.size() >= kIcmpQuotedMin);
    FUZZ_CHECK(v->quoted.payload.data() + v->quoted.payload.size() ==
               message.data() + message.size());
    (void)v->quoted_src_port();
    (void)v->quoted_dst_port();
    (void)v->quoted_seq();
    std::vector<uint8_t> again(message.size());
    FUZZ_CHECK(emit_icmp_error(v->header, message.subspan(kIcmpSize), again) == again.size());
    const Parsed<IcmpErrorView> back = parse_icmp_error(again);
    FUZZ_CHECK(back && back->header == v->header && back->quoted.header == v->quoted.header);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    check({data, size});
    if (size >= kIcmpSize) {
        std::vector<uint8_t> mended(data, data + size);
        store_be16(&mended[2], 0);
        store_be16(&mended[2], checksum(mended));
        check(mended);
    }
    return 0;
}
