#include "config/profiles.h"

#include "config/option_value.h"

namespace vma {
namespace {

constexpr Preset kPresets[] = {
    {Spec::ultra_latency, Opt::tx_segs_tcp, 512},
    {Spec::ultra_latency, Opt::tx_bufs, 512},
    {Spec::ultra_latency, Opt::tx_wre, 256},
    {Spec::ultra_latency, Opt::tx_wre_batching, 4},
    {Spec::ultra_latency, Opt::rx_bufs, 1024},
    {Spec::ultra_latency, Opt::rx_wre, 256},
    {Spec::ultra_latency, Opt::rx_wre_batching, 4},
    {Spec::ultra_latency, Opt::rx_poll, -1},
    {Spec::ultra_latency, Opt::rx_udp_poll_os_ratio, 0},
    {Spec::ultra_latency, Opt::rx_prefetch_bytes_before_poll, 256},
    {Spec::ultra_latency, Opt::select_poll, -1},
    {Spec::ultra_latency, Opt::select_poll_os_ratio, 0},
    {Spec::ultra_latency, Opt::select_skip_os, 0},
    {Spec::ultra_latency, Opt::avoid_sys_calls_on_tcp_fd, 1},
    {Spec::ultra_latency, Opt::gro_streams_max, 0},
    {Spec::ultra_latency, Opt::progress_engine_interval, 0},
    {Spec::ultra_latency, Opt::cq_keep_qp_full, 0},
    {Spec::ultra_latency, Opt::thread_mode, 0},
    {Spec::ultra_latency, Opt::mem_alloc_type, 2},
    {Spec::ultra_latency, Opt::tcp_nodelay, 1},
    {Spec::ultra_latency, Opt::ring_dev_mem_tx, 16384},
    {Spec::ultra_latency, Opt::internal_thread_affinity, 0, "0"},

    {Spec::latency, Opt::tx_wre, 256},
    {Spec::latency, Opt::tx_wre_batching, 4},
    {Spec::latency, Opt::rx_wre, 256},
    {Spec::latency, Opt::rx_wre_batching, 4},
    {Spec::latency, Opt::rx_poll, -1},
    {Spec::latency, Opt::rx_prefetch_bytes_before_poll, 256},
    {Spec::latency, Opt::select_poll, -1},
    {Spec::latency, Opt::avoid_sys_calls_on_tcp_fd, 1},
    {Spec::latency, Opt::gro_streams_max, 0},
    {Spec::latency, Opt::cq_keep_qp_full, 0},
    {Spec::latency, Opt::thread_mode, 0},
    {Spec::latency, Opt::mem_alloc_type, 2},
    {Spec::latency, Opt::internal_thread_affinity, 0, "0"},
    {Spec::latency, Opt::progress_engine_interval, 100},
    {Spec::latency, Opt::select_poll_os_ratio, 1},
    {Spec::latency, Opt::select_skip_os, 1},
    {Spec::latency, Opt::tcp_nodelay, 1},
    {Spec::latency, Opt::ring_dev_mem_tx, 16384},

    {Spec::lbm_29west, Opt::spec_param1, 5000},
    {Spec::lbm_29west, Opt::spec_param2, 50},
    {Spec::lbm_29west, Opt::rx_poll, 0},
    {Spec::lbm_29west, Opt::rx_udp_poll_os_ratio, 100},
    {Spec::lbm_29west, Opt::select_poll, 100000},
    {Spec::lbm_29west, Opt::select_poll_os_ratio, 100},
    {Spec::lbm_29west, Opt::select_skip_os, 50},

    {Spec::wombat_fh, Opt::spec_param1, 5000},
    {Spec::wombat_fh, Opt::spec_param2, 50},
    {Spec::wombat_fh, Opt::rx_poll, 0},
    {Spec::wombat_fh, Opt::rx_udp_poll_os_ratio, 100},
    {Spec::wombat_fh, Opt::select_poll, 0},
    {Spec::wombat_fh, Opt::select_skip_os, 20},

    {Spec::mcd, Opt::ring_allocation_logic_rx, 31},
    {Spec::mcd, Opt::ring_allocation_logic_tx, 31},

    {Spec::mcd_irq, Opt::ring_allocation_logic_rx, 31},
    {Spec::mcd_irq, Opt::ring_allocation_logic_tx, 31},
    {Spec::mcd_irq, Opt::select_poll, 0},
    {Spec::mcd_irq, Opt::rx_poll, 0},
    {Spec::mcd_irq, Opt::cq_moderation_enable, 0},

    {Spec::rti, Opt::rx_poll, -1},

    {Spec::p7750, Opt::tx_bufs, 8192},
    {Spec::p7750, Opt::rx_bufs, 204800},
    {Spec::p7750, Opt::tracelevel, int(LogLevel::warning)},
    {Spec::p7750, Opt::stats_fd_num, 1024},
    {Spec::p7750, Opt::internal_thread_affinity, 0, "0x3"},
    {Spec::p7750, Opt::rx_poll, -1},
    {Spec::p7750, Opt::select_poll, -1},
    {Spec::p7750, Opt::select_poll_os_ratio, 0},
    {Spec::p7750, Opt::tcp_3t_rules, 1},
    {Spec::p7750, Opt::avoid_sys_calls_on_tcp_fd, 1},
    {Spec::p7750, Opt::buffer_batching_mode, 0},
    {Spec::p7750, Opt::tcp_ctl_thread, 2},

    {Spec::multi_ring_latency, Opt::mem_alloc_type, 2},
    {Spec::multi_ring_latency, Opt::select_poll, -1},
    {Spec::multi_ring_latency, Opt::rx_poll, -1},
    {Spec::multi_ring_latency, Opt::ring_allocation_logic_tx, 20},
    {Spec::multi_ring_latency, Opt::ring_allocation_logic_rx, 20},
    {Spec::multi_ring_latency, Opt::select_poll_os_ratio, 0},
    {Spec::multi_ring_latency, Opt::select_skip_os, 0},
    {Spec::multi_ring_latency, Opt::rx_poll_on_tx_tcp, 1},
    {Spec::multi_ring_latency, Opt::trigger_dummy_send_getsockname, 1},
};

// Spec::vma makes every behaviour VMA's. What only names a place (paths, ids, CPUs), the log, and variables of ours that
// VMA has no other behaviour for, stay as they are.
bool in_vma_profile(const OptionRow& row) {
    switch (row.kind) {
        case OptionKind::boolean:
        case OptionKind::integer:
        case OptionKind::uinteger:
        case OptionKind::uinteger_or_0:
        case OptionKind::power_of_two:
        case OptionKind::choice:
            break;
        default:
            return false;
    }
    if (row.id == Opt::log_details || row.id == Opt::log_colors) return false;
    if (row.effect == OptionEffect::no_meaning) return false;
    return std::string_view(row.known) != "10.0" || row.vma.number != row.ours.number;
}

}  // namespace

std::span<const Preset> profile_presets() { return kPresets; }

void apply_profile(Options& o, Spec spec) {
    if (spec == Spec::vma) {
        for (const OptionRow& row : option_rows())
            if (in_vma_profile(row)) store_option(o, row.id, {row.vma.number, {}}, Origin::spec);
        return;
    }
    for (const Preset& p : kPresets)
        if (p.spec == spec)
            store_option(o, p.option, {p.number, p.text ? p.text : ""}, Origin::spec);
    if (spec == Spec::ultra_latency || spec == Spec::latency) {
        o.tx_bufs_batch_udp = 1;
        o.tx_bufs_batch_tcp = 1;
        o.rx_bufs_batch = 4;
    }
    o.offload_pipe = spec == Spec::lbm_29west || spec == Spec::wombat_fh;
}

void apply_socketxtreme(Options& o) {
    store_option(o, Opt::rx_wre, {1024, {}}, Origin::socketxtreme);
    store_option(o, Opt::gro_streams_max, {0, {}}, Origin::socketxtreme);
    store_option(o, Opt::progress_engine_interval, {0, {}}, Origin::socketxtreme);
}

}  // namespace vma
