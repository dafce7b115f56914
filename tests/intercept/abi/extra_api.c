/* Everything of one layout of mellanox/vma_extra.h that programs are compiled against, for abidiff: what the table of functions
 * reaches, and structures that go through socket options and control messages. */
#include <mellanox/vma_extra.h>

struct vma_api_t* extra_api(void);
struct vma_api_t* extra_api(void) {
    return vma_get_api();
}

struct beside {
    vma_cmsg_ioctl_user_alloc_t allocation;
    vma_ring_alloc_logic_attr_comp_mask logic_mask;
    vma_extra_api_mask functions;
    struct vma_rate_limit_t rate;
    struct vma_ring_alloc_logic_attr logic;
    struct vma_packet_desc_t packet;
};
void beside_the_table(const struct beside* all);
void beside_the_table(const struct beside* all) { (void)all; }
