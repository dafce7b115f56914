// An XDP program of somebody else.
#include <linux/bpf.h>
// after the kernel's types, which it uses
#include <bpf/bpf_helpers.h>

SEC("xdp") int pass_on(struct xdp_md* ctx) {
    (void)ctx;
    return XDP_PASS;
}
