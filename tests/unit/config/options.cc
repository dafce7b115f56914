// The parser: precedence, profiles, adjustments, names.
#include "config/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "config/option_value.h"
#include "support/parsed_options.h"

namespace vma {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> texts(const ParsedOptions& p, LogLevel level = LogLevel::warning) {
    std::vector<std::string> out;
    for (const Note& n : p.notes)
        if (n.level == level) out.push_back(n.text);
    return out;
}

TEST(Options, UnsetIsOurDefaultAndNotSet) {
    const ParsedOptions p = parse({});
    EXPECT_EQ(p.options, Options{});
    EXPECT_THAT(p.notes, IsEmpty());
    for (const OptionRow& row : option_rows()) EXPECT_FALSE(p.options.is_set(row.id)) << row.name;
    EXPECT_EQ(p.options.tcp_cc_algo, 1);
    EXPECT_EQ(p.options.tcp_timestamp_option, 2);
    EXPECT_FALSE(p.options.close_on_dup2);
    EXPECT_FALSE(p.options.listen_eager);
    EXPECT_EQ(p.options.spin_max_usec, 200u);
    EXPECT_EQ(p.options.packet_ring_bytes, 8388608u);
}

TEST(Options, SetToVmasDefaultCountsAsSet) {
    const Options o = options({"VMA_RX_POLL=100000"});
    EXPECT_EQ(o.rx_poll, 100000);
    EXPECT_TRUE(o.is_set(Opt::rx_poll));
}

TEST(Options, FirstOfTwoEqualNamesCounts) {
    EXPECT_EQ(options({"VMA_MTU=1400", "VMA_MTU=9000"}).mtu, 1400u);
}

TEST(Options, EntriesWithoutEqualsAreSkipped) {
    const char* entries[] = {"VMA_MTU", nullptr, "VMA_MSS=1000", ""};
    const ParsedOptions p = parse_options(entries, {});
    EXPECT_EQ(p.options.mss, 1000u);
    EXPECT_THAT(p.notes, IsEmpty());
}

TEST(Options, EnvironmentSpan) {
    const char* entries[] = {"A=1", "B=2", nullptr};
    EXPECT_EQ(environment_span(entries).size(), 2u);
    EXPECT_TRUE(environment_span(nullptr).empty());
}

TEST(Options, LevelsByNameAndDigit) {
    const std::pair<const char*, LogLevel> table[] = {
        {"none", LogLevel::none},       {"PANIC", LogLevel::panic},
        {"0", LogLevel::panic},         {"error", LogLevel::error},
        {"1", LogLevel::error},         {"Warn", LogLevel::warning},
        {"warning", LogLevel::warning}, {"2", LogLevel::warning},
        {"info", LogLevel::info},       {"information", LogLevel::info},
        {"3", LogLevel::info},          {"details", LogLevel::details},
        {"debug", LogLevel::debug},     {"4", LogLevel::debug},
        {"fine", LogLevel::fine},       {"func", LogLevel::fine},
        {"5", LogLevel::fine},          {"finer", LogLevel::finer},
        {"func+", LogLevel::finer},     {"funcall", LogLevel::finer},
        {"func_all", LogLevel::finer},  {"func-all", LogLevel::finer},
        {"6", LogLevel::finer},         {"all", LogLevel::all},
    };
    ParseContext everything;
    everything.max_level = LogLevel::all;
    for (const auto& [text, level] : table)
        EXPECT_EQ(parse({std::string("VMA_TRACELEVEL=") + text}, everything).options.tracelevel,
                  level)
            << text;
    EXPECT_EQ(options({"VMA_TRACELEVEL=loud"}).tracelevel, LogLevel::info);
}

TEST(Options, LevelIsCappedByTheBuild) {
    ParseContext context;
    context.max_level = LogLevel::debug;
    const ParsedOptions p = parse({"VMA_TRACELEVEL=finer"}, context);
    EXPECT_EQ(p.options.tracelevel, LogLevel::debug);
    EXPECT_THAT(texts(p), ElementsAre(HasSubstr("this build stops at DEBUG")));
}

TEST(Options, DebugLevelBringsDetails) {
    EXPECT_EQ(options({"VMA_TRACELEVEL=debug"}).log_details, 2);
    EXPECT_EQ(options({"VMA_TRACELEVEL=debug", "VMA_LOG_DETAILS=0"}).log_details, 0);
    EXPECT_EQ(options({"VMA_TRACELEVEL=details"}).log_details, 0);
}

TEST(Options, PidReplacesTheFirstPercentD) {
    ParseContext context;
    context.pid = 4711;
    const Options o = parse({"VMA_LOG_FILE=/tmp/a%d.%d", "VMA_APPLICATION_ID=x%d",
                             "VMA_STATS_FILE=s%d", "VMA_STATS_SHMEM_DIR=d%d", "VMA_CONFIG_FILE=c%d",
                             "VMA_VMAD_NOTIFY_DIR=v%d", "VMA_INTERNAL_THREAD_CPUSET=/c%d"},
                            context)
                          .options;
    EXPECT_EQ(o.log_file, "/tmp/a4711.%d");
    EXPECT_EQ(o.application_id, "x4711");
    EXPECT_EQ(o.stats_file, "s4711");
    EXPECT_EQ(o.stats_shmem_dir, "d4711");
    EXPECT_EQ(o.config_file, "c4711");
    EXPECT_EQ(o.vmad_notify_dir, "v4711");
    EXPECT_EQ(o.internal_thread_cpuset, "/c%d");
}

TEST(Options, SecureExecutionIgnoresFilesAndAddresses) {
    ParseContext context;
    context.secure = true;
    const ParsedOptions p =
        parse({"VMA_LOG_FILE=/etc/passwd", "VMA_LOG_CB_FUNC_PTR=0x1234", "VMA_CONFIG_FILE=/tmp/x",
               "VMA_INTERNAL_THREAD_CPUSET=/c", "VMA_STATS_SHMEM_DIR=/tmp/q", "VMA_MTU=1400",
               "XLIO_SERVICE_NOTIFY_DIR=/q"},
              context);
    EXPECT_EQ(p.options.log_file, "");
    EXPECT_EQ(p.options.log_cb_func_ptr, 0u);
    EXPECT_EQ(p.options.config_file, "/etc/libvma.conf");
    EXPECT_EQ(p.options.internal_thread_cpuset, "");
    EXPECT_EQ(p.options.stats_shmem_dir, "/tmp/");
    EXPECT_EQ(p.options.vmad_notify_dir, "/tmp/vma");
    EXPECT_EQ(p.options.mtu, 1400u);
    ASSERT_THAT(texts(p), testing::SizeIs(1));
    for (const char* name :
         {"VMA_LOG_FILE", "VMA_LOG_CB_FUNC_PTR", "VMA_CONFIG_FILE", "VMA_INTERNAL_THREAD_CPUSET",
          "VMA_STATS_SHMEM_DIR", "XLIO_SERVICE_NOTIFY_DIR"})
        EXPECT_THAT(texts(p)[0], HasSubstr(name));
}

TEST(Options, CallbackPointer) {
    EXPECT_EQ(options({"VMA_LOG_CB_FUNC_PTR=0x7fff12345678"}).log_cb_func_ptr, 0x7fff12345678u);
    EXPECT_EQ(options({"VMA_LOG_CB_FUNC_PTR=7fff12345678"}).log_cb_func_ptr, 0x7fff12345678u);
    EXPECT_EQ(options({"VMA_LOG_CB_FUNC_PTR="}).log_cb_func_ptr, 0u);
}

TEST(Options, UnknownNameGivesTheNearest) {
    const ParsedOptions p = parse({"VMA_RX_POL=1", "VMA_TRACELEVL=3", "OTHER=1", "VMAX=1"});
    EXPECT_EQ(p.options, Options{});
    EXPECT_THAT(
        texts(p),
        ElementsAre(
            "VMA_RX_POL is not a variable of this library; the nearest is VMA_RX_POLL",
            "VMA_TRACELEVL is not a variable of this library; the nearest is VMA_TRACELEVEL"));
    EXPECT_STREQ(nearest_option_name("VMA_rx_poll_yeild"), "VMA_RX_POLL_YIELD");
}

TEST(Options, EveryAliasSetsItsTarget) {
    for (const OptionAlias& a : option_aliases()) {
        const OptionRow& target = option_row(a.target);
        const ParsedOptions p = parse({std::string(a.name) + "=2"});
        EXPECT_EQ(load_option(p.options, a.target).number, 2) << a.name;
        EXPECT_THAT(texts(p),
                    ElementsAre(std::string(a.name) + " is deprecated, use " + target.name));
        // The new name wins, wherever it stands.
        EXPECT_EQ(
            load_option(options({std::string(a.name) + "=2", std::string(target.name) + "=1"}),
                        a.target)
                .number,
            1);
    }
}

TEST(Options, EveryRemovedVariableSaysWhatToUse) {
    for (const OptionGone& g : options_gone()) {
        const ParsedOptions p = parse({std::string(g.name) + "=1"});
        EXPECT_EQ(p.options, Options{}) << g.name;
        EXPECT_THAT(texts(p), ElementsAre(std::string(g.name) + " has no effect: " + g.help));
    }
}

TEST(Options, XlioNames) {
    for (const OptionRow& row : option_rows()) {
        if (row.xlio[0] == '\0') continue;
        const std::string value = option_default_text(row, true);
        const ParsedOptions p = parse({std::string("XLIO_") + row.xlio + "=" + value});
        EXPECT_TRUE(p.options.is_set(row.id)) << row.name;
        EXPECT_EQ(load_option(p.options, row.id), option_default_value(row, true)) << row.name;
    }
    EXPECT_EQ(options({"XLIO_MTU=1400", "VMA_MTU=1500"}).mtu, 1500u);
    // XLIO counts microseconds, VMA loops.
    const ParsedOptions p = parse({"XLIO_RX_POLL=-1", "XLIO_STRQ=1"});
    EXPECT_EQ(p.options, Options{});
    EXPECT_THAT(texts(p),
                ElementsAre(HasSubstr("XLIO_RX_POLL is ignored: VMA_RX_POLL has another meaning"),
                            HasSubstr("XLIO_STRQ is ignored: it has no counterpart")));
}

TEST(Options, Precedence) {
    // SOCKETXTREME presets, then the profile, then the variable.
    EXPECT_EQ(options({"VMA_SOCKETXTREME=1"}).rx_wre, 1024u);
    EXPECT_EQ(options({"VMA_SOCKETXTREME=1", "VMA_SPEC=latency"}).rx_wre, 256u);
    EXPECT_EQ(options({"VMA_SOCKETXTREME=1", "VMA_SPEC=latency", "VMA_RX_WRE=512"}).rx_wre, 512u);
    EXPECT_EQ(options({"VMA_SPEC=latency"}).origin(Opt::rx_wre), Origin::spec);
    // A bad explicit value leaves the profile's.
    const ParsedOptions p = parse({"VMA_SPEC=latency", "VMA_RX_POLL=fast"});
    EXPECT_EQ(p.options.rx_poll, -1);
    EXPECT_THAT(texts(p), ElementsAre(HasSubstr("using \"-1\" of VMA_SPEC=latency")));
}

TEST(Options, SocketXtremeForcesTheDrainThreadOff) {
    const Options o = options({"VMA_SOCKETXTREME=1", "VMA_PROGRESS_ENGINE_INTERVAL=10"});
    EXPECT_EQ(o.progress_engine_interval, 0u);
    EXPECT_EQ(o.gro_streams_max, 0);
}

TEST(Options, Adjustments) {
    EXPECT_EQ(options({"VMA_RX_POLL=0"}).rx_poll, 1);
    const Options unbatched = options({"VMA_BUFFER_BATCHING_MODE=0"});
    EXPECT_EQ(unbatched.tx_bufs_batch_udp + unbatched.tx_bufs_batch_tcp + unbatched.rx_bufs_batch,
              3u);
    EXPECT_EQ(options({"VMA_TX_WRE=10"}).tx_wre, 128u);
    EXPECT_EQ(options({"VMA_TX_WRE=10", "VMA_TX_WRE_BATCHING=4"}).tx_wre, 10u);
    EXPECT_EQ(options({"VMA_RX_WRE=10"}).rx_wre, 128u);
    EXPECT_EQ(options({"VMA_QP_COMPENSATION_LEVEL=1"}).qp_compensation_level, 64u);
    // 204 inline bytes: 192 -> 192, + 12 -> 256 per request of 2 MiB.
    EXPECT_EQ(options({"VMA_TX_WRE=100000"}).tx_wre, 8192u);
    EXPECT_EQ(options({"VMA_TX_WRE=100000", "VMA_TX_MAX_INLINE=0"}).tx_wre, 2097152u / 128u);
    EXPECT_EQ(options({"VMA_TX_MAX_INLINE=900"}).tx_max_inline, 884u);
    const ParsedOptions p = parse({"VMA_TX_WRE=10"});
    EXPECT_THAT(texts(p),
                ElementsAre("VMA_TX_WRE=10: less than twice VMA_TX_WRE_BATCHING; using 128"));
}

TEST(Options, PollingForEverTurnsModerationOff) {
    const Options o = options({"VMA_RX_POLL=-1"});
    EXPECT_FALSE(o.cq_moderation_enable);
    EXPECT_EQ(o.cq_aim_interval_msec, 0u);
    const Options kept = options({"VMA_SELECT_POLL=-1", "VMA_CQ_MODERATION_ENABLE=1"});
    EXPECT_TRUE(kept.cq_moderation_enable);
    EXPECT_EQ(kept.cq_aim_interval_msec, 250u);
    EXPECT_EQ(options({"VMA_RX_WRE=200", "VMA_RX_WRE_BATCHING=4"}).cq_aim_max_count, 100u);
    EXPECT_EQ(options({"VMA_RX_WRE=40", "VMA_RX_WRE_BATCHING=4"}).cq_moderation_count, 20u);
}

TEST(Options, TcpTimerIsRaisedOnlyWhenAskedFor) {
    EXPECT_EQ(options({}).tcp_timer_resolution_msec, 0u);
    const ParsedOptions p = parse({"VMA_TCP_TIMER_RESOLUTION_MSEC=5"});
    EXPECT_EQ(p.options.tcp_timer_resolution_msec, 10u);
    EXPECT_THAT(texts(p), ElementsAre(HasSubstr("VMA_TCP_TIMER_RESOLUTION_MSEC=5")));
}

TEST(Options, SelectPollOsForce) {
    const ParsedOptions p = parse({"VMA_SELECT_POLL_OS_FORCE=1"});
    EXPECT_EQ(p.options.select_poll_os_ratio, 1u);
    EXPECT_EQ(p.options.select_skip_os, 1u);
    EXPECT_TRUE(p.options.is_set(Opt::select_skip_os));
    EXPECT_THAT(texts(p), ElementsAre(HasSubstr("deprecated")));
}

TEST(Options, PowerOfTwo) {
    EXPECT_EQ(options({"VMA_PACKET_RING_BYTES=1048576"}).packet_ring_bytes, 1048576u);
    const ParsedOptions p = parse({"VMA_PACKET_RING_BYTES=3000000"});
    EXPECT_EQ(p.options.packet_ring_bytes, 8388608u);
    EXPECT_THAT(texts(p), ElementsAre(HasSubstr("not a power of two")));
}

TEST(Options, PrefetchBeforePollMayBeZero) {
    EXPECT_THAT(parse({"VMA_RX_PREFETCH_BYTES_BEFORE_POLL=0"}).notes, IsEmpty());
    EXPECT_EQ(options({"VMA_RX_PREFETCH_BYTES_BEFORE_POLL=32"}).rx_prefetch_bytes_before_poll, 32u);
}

TEST(Cpus, Text) {
    const auto list = [](const char* text) {
        std::vector<unsigned> out;
        const auto cpus = cpus_from_text(text);
        if (!cpus) return std::vector<unsigned>{99999};
        for (unsigned i = 0; i < kMaxCpus; ++i)
            if (cpus->test(i)) out.push_back(i);
        return out;
    };
    EXPECT_THAT(list("-1"), IsEmpty());
    EXPECT_THAT(list("0"), ElementsAre(0));
    EXPECT_THAT(list("0,2-4,1023"), ElementsAre(0, 2, 3, 4, 1023));
    EXPECT_THAT(list("0x5"), ElementsAre(0, 2));
    EXPECT_THAT(list("0X10000000000000001"), ElementsAre(0, 64));
    for (const char* bad :
         {"", ",", "1,", "0x", "0x0", "0xg", "4-2", "1024", "-2", "1-", "a", "1;2", "0,-1"})
        EXPECT_THAT(list(bad), ElementsAre(99999)) << bad;
}

// The assignments of VMA_SPEC, as the manual lists them, against the whole value: nothing else changes.
struct Profile {
    std::vector<std::string> spellings;
    std::vector<std::pair<Opt, int64_t>> numbers;
    const char* affinity;
    uint32_t batches[3];  // UDP and TCP sending, receiving
    bool pipe;
};
const Profile kProfiles[] = {
    {{"none", "0", "NONE"}, {}, "-1", {8, 16, 64}, false},
    {{"ultra-latency", "10", "Ultra-Latency"},
     {{Opt::tx_segs_tcp, 512},
      {Opt::tx_bufs, 512},
      {Opt::tx_wre, 256},
      {Opt::tx_wre_batching, 4},
      {Opt::rx_bufs, 1024},
      {Opt::rx_wre, 256},
      {Opt::rx_wre_batching, 4},
      {Opt::rx_poll, -1},
      {Opt::rx_udp_poll_os_ratio, 0},
      {Opt::rx_prefetch_bytes_before_poll, 256},
      {Opt::select_poll, -1},
      {Opt::select_poll_os_ratio, 0},
      {Opt::select_skip_os, 0},
      {Opt::avoid_sys_calls_on_tcp_fd, 1},
      {Opt::gro_streams_max, 0},
      {Opt::progress_engine_interval, 0},
      {Opt::cq_keep_qp_full, 0},
      {Opt::thread_mode, 0},
      {Opt::mem_alloc_type, 2},
      {Opt::tcp_nodelay, 1},
      {Opt::ring_dev_mem_tx, 16384},
      {Opt::cq_moderation_enable, 0},
      {Opt::cq_aim_interval_msec, 0},
      {Opt::cq_aim_max_count, 128}},
     "0",
     {1, 1, 4},
     false},
    {{"latency", "15"},
     {{Opt::tx_wre, 256},
      {Opt::tx_wre_batching, 4},
      {Opt::rx_wre, 256},
      {Opt::rx_wre_batching, 4},
      {Opt::rx_poll, -1},
      {Opt::rx_prefetch_bytes_before_poll, 256},
      {Opt::select_poll, -1},
      {Opt::avoid_sys_calls_on_tcp_fd, 1},
      {Opt::gro_streams_max, 0},
      {Opt::cq_keep_qp_full, 0},
      {Opt::thread_mode, 0},
      {Opt::mem_alloc_type, 2},
      {Opt::progress_engine_interval, 100},
      {Opt::select_poll_os_ratio, 1},
      {Opt::select_skip_os, 1},
      {Opt::tcp_nodelay, 1},
      {Opt::ring_dev_mem_tx, 16384},
      {Opt::cq_moderation_enable, 0},
      {Opt::cq_aim_interval_msec, 0},
      {Opt::cq_aim_max_count, 128}},
     "0",
     {1, 1, 4},
     false},
    {{"29west", "29"},
     {{Opt::spec_param1, 5000},
      {Opt::spec_param2, 50},
      {Opt::rx_poll, 1},
      {Opt::rx_udp_poll_os_ratio, 100},
      {Opt::select_poll, 100000},
      {Opt::select_poll_os_ratio, 100},
      {Opt::select_skip_os, 50}},
     "-1",
     {8, 16, 64},
     true},
    {{"wombat_fh", "554"},
     {{Opt::spec_param1, 5000},
      {Opt::spec_param2, 50},
      {Opt::rx_poll, 1},
      {Opt::rx_udp_poll_os_ratio, 100},
      {Opt::select_poll, 0},
      {Opt::select_skip_os, 20}},
     "-1",
     {8, 16, 64},
     true},
    {{"mcd", "623"},
     {{Opt::ring_allocation_logic_rx, 31}, {Opt::ring_allocation_logic_tx, 31}},
     "-1",
     {8, 16, 64},
     false},
    {{"mcd-irq", "624"},
     {{Opt::ring_allocation_logic_rx, 31},
      {Opt::ring_allocation_logic_tx, 31},
      {Opt::select_poll, 0},
      {Opt::rx_poll, 1},
      {Opt::cq_moderation_enable, 0},
      {Opt::cq_aim_interval_msec, 0}},
     "-1",
     {8, 16, 64},
     false},
    {{"rti", "784"},
     {{Opt::rx_poll, -1}, {Opt::cq_moderation_enable, 0}, {Opt::cq_aim_interval_msec, 0}},
     "-1",
     {8, 16, 64},
     false},
    {{"7750"},
     {{Opt::tx_bufs, 8192},
      {Opt::rx_bufs, 204800},
      {Opt::tracelevel, 2},
      {Opt::stats_fd_num, 1024},
      {Opt::rx_poll, -1},
      {Opt::select_poll, -1},
      {Opt::select_poll_os_ratio, 0},
      {Opt::tcp_3t_rules, 1},
      {Opt::avoid_sys_calls_on_tcp_fd, 1},
      {Opt::buffer_batching_mode, 0},
      {Opt::tcp_ctl_thread, 2},
      {Opt::cq_moderation_enable, 0},
      {Opt::cq_aim_interval_msec, 0}},
     "0x3",
     {1, 1, 1},
     false},
    {{"multi_ring_latency"},
     {{Opt::mem_alloc_type, 2},
      {Opt::select_poll, -1},
      {Opt::rx_poll, -1},
      {Opt::ring_allocation_logic_tx, 20},
      {Opt::ring_allocation_logic_rx, 20},
      {Opt::select_poll_os_ratio, 0},
      {Opt::select_skip_os, 0},
      {Opt::rx_poll_on_tx_tcp, 1},
      {Opt::trigger_dummy_send_getsockname, 1},
      {Opt::cq_moderation_enable, 0},
      {Opt::cq_aim_interval_msec, 0}},
     "-1",
     {8, 16, 64},
     false},
};

TEST(Profiles, SetExactlyWhatIsListed) {
    for (const Profile& profile : kProfiles) {
        for (const std::string& spelling : profile.spellings) {
            SCOPED_TRACE(spelling);
            const ParsedOptions p = parse({"VMA_SPEC=" + spelling});
            EXPECT_THAT(texts(p), IsEmpty());
            std::map<Opt, int64_t> listed(profile.numbers.begin(), profile.numbers.end());
            for (const OptionRow& row : option_rows()) {
                if (row.id == Opt::spec || row.id == Opt::internal_thread_affinity) continue;
                OptionValue expected = option_default_value(row, false);
                if (const auto it = listed.find(row.id); it != listed.end())
                    expected = {it->second, {}};
                EXPECT_EQ(load_option(p.options, row.id), expected) << row.name;
            }
            EXPECT_EQ(p.options.internal_thread_affinity, profile.affinity);
            EXPECT_EQ(p.options.tx_bufs_batch_udp, profile.batches[0]);
            EXPECT_EQ(p.options.tx_bufs_batch_tcp, profile.batches[1]);
            EXPECT_EQ(p.options.rx_bufs_batch, profile.batches[2]);
            EXPECT_EQ(p.options.offload_pipe, profile.pipe);
        }
    }
}

TEST(Profiles, VmaRestoresEveryDefault) {
    const ParsedOptions p = parse({"VMA_SPEC=vma"});
    EXPECT_THAT(texts(p), IsEmpty());
    for (const OptionRow& row : option_rows()) {
        if (row.id == Opt::spec || row.effect == OptionEffect::no_meaning) continue;
        EXPECT_EQ(load_option(p.options, row.id), option_default_value(row, true)) << row.name;
    }
    EXPECT_EQ(p.options.tcp_cc_algo, 0);
    EXPECT_EQ(p.options.tcp_timestamp_option, 0);
    EXPECT_EQ(p.options.tcp_timer_resolution_msec, 100u);
    EXPECT_EQ(p.options.rx_bytes_min, 65536u);
    EXPECT_TRUE(p.options.listen_eager);
    EXPECT_FALSE(p.options.ignore_firewall);
    for (const Opt o : {Opt::rx_poll, Opt::select_poll, Opt::tcp_quickack, Opt::exception_handling,
                        Opt::window_scaling})
        EXPECT_TRUE(p.options.is_set(o));
    EXPECT_FALSE(p.options.is_set(Opt::config_file));
    EXPECT_FALSE(p.options.is_set(Opt::ring_kind));
}

}  // namespace
}  // namespace vma
