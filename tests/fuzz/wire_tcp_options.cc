// A TCP segment: header, then options. What was read can be written and read again.
#include "fuzz/fuzz_check.h"
#include "wire/tcp.h"
#include "wire/tcp_options.h"

using namespace vma;

namespace {

void check_options(ByteView bytes) {
    TcpOptions options;
    (void)parse_tcp_options(bytes, options);
    FUZZ_CHECK(options.sack_count <= options.sack.size());
    FUZZ_CHECK(options.fast_open_len <= options.fast_open.size());
    uint8_t out[kTcpMaxOptions];
    const Result<uint32_t> n = emit_tcp_options(options, out);
    if (!n) {
        FUZZ_CHECK(n.error() == EMSGSIZE && tcp_options_size(options) > kTcpMaxOptions);
        return;
    }
    TcpOptions back;
    FUZZ_CHECK(parse_tcp_options(ByteView(out, *n), back) == TcpOptionsStatus::ok);
    FUZZ_CHECK(back == options);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const ByteView input(data, size);
    if (const Parsed<TcpView> tcp = parse_tcp(input)) {
        FUZZ_CHECK(tcp->options.size() + tcp->payload.size() + kTcpSize == size);
        uint8_t again[kTcpSize];
        FUZZ_CHECK(emit_tcp(tcp->header, again) == kTcpSize);
        FUZZ_CHECK(std::memcmp(again, data, kTcpSize) == 0);
        check_options(tcp->options);
    }
    check_options(input);
    return 0;
}
