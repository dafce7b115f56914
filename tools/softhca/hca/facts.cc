// What the device says of itself.
#include <cstdio>
#include <cstring>
#include <ctime>

#include "softhca/hca/objects.h"

namespace softhca {

__be64 guid_of(const uint8_t* mac) {
    const uint8_t eui[8] = {
        uint8_t(mac[0] ^ 2), mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
    __be64 guid;
    std::memcpy(&guid, eui, 8);
    return guid;
}

int query_device(ibv_context* ibv, ibv_device_attr_ex* out) {
    const Context& c = context_of(ibv);
    const DeviceConfig& d = c.device->config;
    *out = {};
    ibv_device_attr& a = out->orig_attr;
    std::snprintf(a.fw_ver, sizeof(a.fw_ver), "1.0.0");
    a.node_guid = a.sys_image_guid = guid_of(d.mac);
    a.max_mr_size = UINT64_MAX;
    a.page_size_cap = 0xfffffffffffff000;
    a.vendor_id = d.mlx5 ? 0x02c9 : 0;
    a.vendor_part_id = d.mlx5 ? 4119 : 0x5348;  // a ConnectX-5, or "SH"
    a.max_qp = int(kMaxQps - kFirstQp);
    a.max_qp_wr = int(d.max_qp_wr);
    a.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_PORT_ACTIVE_EVENT |
                         IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_CURR_QP_STATE_MOD |
                         IBV_DEVICE_MANAGED_FLOW_STEERING;
    if (d.tx_checksum) a.device_cap_flags |= IBV_DEVICE_RAW_IP_CSUM;
    a.max_sge = a.max_sge_rd = a.max_srq_sge = int(d.max_sge);
    a.max_cq = int(kMaxCqs - 1);
    a.max_cqe = 1 << 20;
    a.max_mr = int(kMaxMrs - 1);
    a.max_pd = 1 << 15;
    a.max_qp_rd_atom = a.max_qp_init_rd_atom = 16;
    a.max_res_rd_atom = a.max_qp_rd_atom * a.max_qp;
    a.atomic_cap = IBV_ATOMIC_HCA;
    a.max_raw_ethy_qp = a.max_qp;
    a.max_mcast_grp = 8192;
    a.max_mcast_qp_attach = int(kMaxGroups);
    a.max_total_mcast_qp_attach = a.max_mcast_qp_attach * a.max_qp;
    a.max_ah = 1 << 20;
    a.max_srq = int(kMaxSrqs);
    a.max_srq_wr = int(d.max_qp_wr);
    a.max_pkeys = 1;
    a.local_ca_ack_delay = 16;
    a.phys_port_cnt = 1;
    if (d.timestamps) {
        out->completion_timestamp_mask = UINT64_MAX;
        out->hca_core_clock = 1000000;  // kHz: a tick is a nanosecond
    }
    out->device_cap_flags_ex = a.device_cap_flags;
    if (d.max_tso) out->tso_caps = {d.max_tso, 1u << IBV_QPT_RAW_PACKET};
    out->raw_packet_caps =
        d.rx_checksum || d.tx_checksum ? uint32_t(IBV_RAW_PACKET_CAP_IP_CSUM) : 0;
    out->cq_mod_caps = {UINT16_MAX, UINT16_MAX};
    out->max_dm_size = d.dm_bytes;
    out->phys_port_cnt_ex = 1;
    return 0;
}

int query_port(ibv_context* ibv, uint8_t port, ibv_port_attr* a) {
    const Station& s = context_of(ibv).station();
    if (port != 1) return EINVAL;
    *a = {};
    a->state = s.port_up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    a->max_mtu = IBV_MTU_4096;
    a->active_mtu = s.mtu;
    a->gid_tbl_len = int(kMaxGids);
    a->port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    a->max_msg_sz = 1u << 30;
    a->pkey_tbl_len = 1;
    a->active_width = 2;   // 4X
    a->active_speed = 32;  // EDR
    a->phys_state = s.port_up ? 5 : 3;
    a->link_layer = IBV_LINK_LAYER_ETHERNET;
    a->flags = IBV_QPF_GRH_REQUIRED;
    return 0;
}

}  // namespace softhca
