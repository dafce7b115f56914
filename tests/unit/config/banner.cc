// Banner, warnings, snapshot, and that the checked-in document is the generated one.
#include "config/banner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "config/snapshot.h"
#include "config/warnings.h"

namespace vma {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Line {
    LogLevel level;
    std::string text;
};
class Lines {
  public:
    LineSink sink() {
        return [this](LogLevel l, std::string_view t) { lines_.push_back({l, std::string(t)}); };
    }
    std::vector<std::string> at(LogLevel level) const {
        std::vector<std::string> out;
        for (const Line& l : lines_)
            if (l.level == level) out.push_back(l.text);
        return out;
    }
    std::string all() const {
        std::string out;
        for (const Line& l : lines_) out += l.text + "\n";
        return out;
    }
    size_t size() const { return lines_.size(); }

  private:
    std::vector<Line> lines_;
};

Options options(const std::vector<std::string>& environment) {
    std::vector<const char*> entries;
    for (const std::string& e : environment) entries.push_back(e.c_str());
    return parse_options(entries, {}).options;
}
std::vector<std::string> banner(const Options& o, LogLevel level = LogLevel::info,
                                const BannerFacts& f = {}) {
    Lines lines;
    print_banner(o, f, lines.sink());
    return lines.at(level);
}
const std::string kDashes(75, '-');

TEST(Banner, DefaultsShowOnlyTheLogLevel) {
    EXPECT_THAT(
        banner(Options{}),
        ElementsAre(kDashes, version_line(), kDashes,
                    "Log Level                      INFO                       [VMA_TRACELEVEL]",
                    kDashes));
}

TEST(Banner, LatencyProfileInTheKnownForm) {
    BannerFacts facts;
    facts.command_line = "myfeed -g 239.1.2.3";
    const auto lines = banner(options({"VMA_SPEC=latency", "VMA_RING_ALLOCATION_LOGIC_RX=20"}),
                              LogLevel::info, facts);
    ASSERT_GT(lines.size(), 10u);
    EXPECT_EQ(lines[0], kDashes);
    EXPECT_THAT(lines[1], testing::MatchesRegex("VMA_VERSION: 10\\.0\\.0-1 Release built on "
                                                "[A-Z][a-z][a-z] [ 0-9][0-9] [0-9]+ [0-9:]+"));
    EXPECT_EQ(lines[2], "Cmd Line: myfeed -g 239.1.2.3");
    EXPECT_EQ(lines[3], kDashes);
    EXPECT_EQ(lines[4], "VMA Spec                       Latency                    [VMA_SPEC]");
    EXPECT_EQ(lines[5],
              "Log Level                      INFO                       [VMA_TRACELEVEL]");
    for (const char* row : {
             "Ring allocation logic RX       20(Ring per thread)        "
             "[VMA_RING_ALLOCATION_LOGIC_RX]",
             "Rx Poll Loops                  -1                         [VMA_RX_POLL]",
             "Thread mode                    Single                     [VMA_THREAD_MODE]",
             "TCP nodelay                    Enabled                    [VMA_TCP_NODELAY]",
             "CQ Interrupts Moderation       Disabled                   [VMA_CQ_MODERATION_ENABLE]",
             "CQ Adaptive Moderation         Disabled                   [VMA_CQ_AIM_INTERVAL_MSEC]",
             "Internal Thread Affinity       0                          "
             "[VMA_INTERNAL_THREAD_AFFINITY]",
             "CQ Drain Interval (msec)       100                        "
             "[VMA_PROGRESS_ENGINE_INTERVAL]",
         })
        EXPECT_THAT(lines, testing::Contains(std::string(row)));
    EXPECT_EQ(lines.back(), kDashes);
}

TEST(Banner, ParametersOfPipeProfiles) {
    const auto lines = banner(options({"VMA_SPEC=29west"}));
    EXPECT_EQ(lines[3], "VMA Spec                       29West LBM Logic           [VMA_SPEC]");
    EXPECT_EQ(lines[4],
              "Param 1:                       5000                       [VMA_SPEC_PARAM1]");
    EXPECT_EQ(lines[5],
              "Param 2:                       50                         [VMA_SPEC_PARAM2]");
}

TEST(Banner, DrainThreadOffIsAlwaysShown) {
    EXPECT_THAT(banner(options({"VMA_PROGRESS_ENGINE_INTERVAL=0"})),
                testing::Contains("CQ Drain Thread                Disabled                   "
                                  "[VMA_PROGRESS_ENGINE_INTERVAL]"));
}

TEST(Banner, AValueWithAnotherUnsetMeaningShowsWhenSet) {
    const auto shown = [](const Options& o, LogLevel level) {
        for (const std::string& line : banner(o, level))
            if (line.ends_with("[VMA_RX_POLL]")) return line;
        return std::string();
    };
    EXPECT_EQ(shown(Options{}, LogLevel::details),
              "Rx Poll Loops                  auto                       [VMA_RX_POLL]");
    EXPECT_EQ(shown(options({"VMA_RX_POLL=100000"}), LogLevel::info),
              "Rx Poll Loops                  100000                     [VMA_RX_POLL]");
}

TEST(Banner, RowsKeepTheirOrder) {
    std::vector<std::string> labels;
    for (const std::string& line : banner(Options{}, LogLevel::details)) {
        const size_t bracket = line.rfind('[');
        ASSERT_NE(bracket, std::string::npos);
        labels.push_back(line.substr(0, 31));
        labels.back().erase(labels.back().find_last_not_of(' ') + 1);
    }
    const std::vector<std::string> expected = {
        "Log Details",
        "Log Colors",
        "Log File",
        "Stats File",
        "Stats shared memory directory",
        "SERVICE output directory",
        "Stats FD Num (max)",
        "Conf File",
        "Settings File",
        "Application ID",
        "Polling CPU idle usage",
        "SigIntr Ctrl-C Handle",
        "SegFault Backtrace",
        "Ring allocation logic TX",
        "Ring allocation logic RX",
        "Ring migration ratio TX",
        "Ring migration ratio RX",
        "Ring limit per interface",
        "Ring On Device Memory TX",
        "TCP max syn rate",
        "Tx Mem Segs TCP",
        "Tx Mem Bufs",
        "Tx QP WRE",
        "Tx QP WRE Batching",
        "Tx Max QP INLINE",
        "Tx MC Loopback",
        "Tx non-blocked eagains",
        "Tx Prefetch Bytes",
        "Rx Mem Bufs",
        "Rx QP WRE",
        "Rx QP WRE Batching",
        "Rx Byte Min Limit",
        "Rx Poll Loops",
        "Rx Poll Init Loops",
        "Rx UDP Poll OS Ratio",
        "HW TS Conversion",
        "Rx Poll Yield",
        "Rx Prefetch Bytes",
        "Rx Prefetch Bytes Before Poll",
        "Rx CQ Drain Rate",
        "GRO max streams",
        "TCP 3T rules",
        "UDP 3T rules",
        "ETH MC L2 only rules",
        "Force Flowtag for MC",
        "Select Poll (usec)",
        "Select Poll OS Ratio",
        "Select Skip OS",
        "CQ Drain Interval (msec)",
        "CQ Drain WCE (max)",
        "CQ Interrupts Moderation",
        "CQ Moderation Count",
        "CQ Moderation Period (usec)",
        "CQ AIM Max Count",
        "CQ AIM Max Period (usec)",
        "CQ AIM Interval (msec)",
        "CQ AIM Interrupts Rate (per sec)",
        "CQ Poll Batch (max)",
        "CQ Keeps QP Full",
        "QP Compensation Level",
        "Offloaded Sockets",
        "Timer Resolution (msec)",
        "TCP Timer Resolution (msec)",
        "TCP control thread",
        "TCP timestamp option",
        "TCP nodelay",
        "TCP quickack",
        "Exception handling mode",
        "Avoid sys-calls on tcp fd",
        "Allow privileged sock opt",
        "Delay after join (msec)",
        "Internal Thread Affinity",
        "Internal Thread Cpuset",
        "Internal Thread Arm CQ",
        "Thread mode",
        "Buffer batching mode",
        "Mem Allocate type",
        "Num of UC ARPs",
        "UC ARP delay (msec)",
        "Num of neigh restart retries",
        "SocketXtreme mode",
        "BF (Blue Flame)",
        "fork() support",
        "close on dup2()",
        "MTU",
        "MSS",
        "TCP CC Algorithm",
        "Deferred close",
        "Polling Rx on Tx TCP",
        "Trig dummy send getsockname()",
    };
    // One label is longer than its column; the cut at 31 keeps one character of padding or value.
    for (std::string& l : labels)
        if (l.starts_with("CQ AIM Interrupts Rate")) l = "CQ AIM Interrupts Rate (per sec)";
    ASSERT_GE(labels.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(labels[i], expected[i]) << i;
}

TEST(Banner, FactsAndTheirLevels) {
    BannerFacts f{
        "prog a b", "Mon Jan  1 2029", 42,    "0123456789abcdef0123456789abcdef01234567", "OFED-5",
        "6.18",     "x86_64",          "host"};
    EXPECT_THAT(banner(Options{}, LogLevel::debug, f),
                ElementsAre("Current Time: Mon Jan  1 2029", "Pid:    42", "System: 6.18",
                            "Architecture: x86_64", "Node: host"));
    const auto info = banner(Options{}, LogLevel::info, f);
    EXPECT_EQ(info[2], "Git: 0123456789abcdef0123456789abcdef01234567");
    EXPECT_EQ(info[3], "Cmd Line: prog a b");
    EXPECT_EQ(info[4], "OFED Version: OFED-5");
}

TEST(Warnings, HighLogLevelIsABoxOfFiveLines) {
    Lines l;
    warn_startup({LogLevel::debug, UINT64_MAX, true, {}}, l.sink());
    ASSERT_EQ(l.at(LogLevel::warning).size(), 5u);
    EXPECT_THAT(l.all(), HasSubstr("VMA_TRACELEVEL"));
    Lines quiet;
    warn_startup({LogLevel::details, UINT64_MAX, true, {"prog"}}, quiet.sink());
    EXPECT_EQ(quiet.size(), 0u);
}

TEST(Warnings, LockedMemory) {
    Lines l;
    warn_startup({LogLevel::info, 65536 * 1024, true, {}}, l.sink());
    EXPECT_THAT(l.all(), HasSubstr("65536 KiB"));
    EXPECT_THAT(l.all(), HasSubstr("memlock"));
    Lines no_need;
    warn_startup({LogLevel::info, 65536, false, {}}, no_need.sink());
    EXPECT_EQ(no_need.size(), 0u);
}

TEST(Warnings, Netserver) {
    const auto count = [](std::vector<std::string> argv) {
        Lines l;
        warn_startup({LogLevel::info, UINT64_MAX, true, std::move(argv)}, l.sink());
        return l.size();
    };
    EXPECT_EQ(count({"/usr/bin/netserver"}), 2u);
    EXPECT_EQ(count({"netserver", "-D"}), 2u);
    EXPECT_EQ(count({"netserver", "-D", "-f"}), 0u);
    EXPECT_EQ(count({"/usr/bin/mynetserver"}), 0u);
}

TEST(Warnings, HugePagesThatTheKernelDoesNotGive) {
    const auto said = [](int asked, const char* shmem) {
        Lines l;
        warn_huge_pages({asked, shmem}, l.sink());
        return l.all();
    };
    for (const int quiet : {0, 1}) EXPECT_EQ(said(quiet, "never"), "");
    for (const char* good : {"always", "within_size", "advise", "force"})
        EXPECT_EQ(said(2, good), "");
    EXPECT_THAT(said(2, "never"), HasSubstr("VMA_MEM_ALLOC_TYPE=2 asks for huge pages; the kernel "
                                            "gives shared memory none (never)"));
    EXPECT_THAT(said(3, "deny"), HasSubstr("none (deny)"));
    EXPECT_THAT(said(2, ""), HasSubstr("none (no shmem_enabled)"));
}

TEST(Warnings, IgmpAndItsSuppression) {
    Lines l;
    warn_igmp({"eth1", 3, false}, l.sink());
    EXPECT_THAT(l.all(), HasSubstr("eth1 speaks IGMPv3"));
    EXPECT_THAT(l.all(), HasSubstr("VMA_SUPPRESS_IGMP_WARNING"));
    Lines quiet;
    warn_igmp({"eth1", 3, true}, quiet.sink());
    warn_igmp({"eth1", 2, false}, quiet.sink());
    warn_igmp({"eth1", 0, false}, quiet.sink());
    EXPECT_EQ(quiet.size(), 0u);
}

TEST(Warnings, ArpFlux) {
    Lines l;
    warn_arp_flux({"eth1", "eth2", 0, 0}, l.sink());
    EXPECT_THAT(l.all(), HasSubstr("net.ipv4.conf.eth1.arp_ignore=1"));
    Lines quiet;
    warn_arp_flux({"eth1", "eth2", 1, 2}, quiet.sink());
    warn_arp_flux({"eth1", "", 0, 0}, quiet.sink());
    EXPECT_EQ(quiet.size(), 0u);
}

TEST(Warnings, MissingCapability) {
    const std::string line = missing_capability_line({"eth1", "CAP_NET_RAW is needed"});
    EXPECT_THAT(line, HasSubstr("interface eth1: no ring"));
    EXPECT_THAT(line, HasSubstr("CAP_NET_RAW is needed; start the program as root"));
    EXPECT_THAT(line, HasSubstr("ambient capabilities"));
}

std::filesystem::path source_root() {
    return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path().parent_path();
}
std::string file_text(const std::filesystem::path& path) {
    std::ifstream in(path);
    EXPECT_TRUE(in.good()) << path;
    std::stringstream s;
    s << in.rdbuf();
    return s.str();
}

TEST(Documents, ConfigIsTheGeneratedOne) {
    EXPECT_EQ(file_text(source_root() / "docs/CONFIG.md"), options_markdown())
        << "run: vma_docgen config > docs/CONFIG.md";
}

TEST(Documents, SchemaIsTheGeneratedOne) {
    EXPECT_EQ(file_text(source_root() / "docs/libvma.schema.json"), options_schema())
        << "run: vma_docgen schema > docs/libvma.schema.json";
}

TEST(Documents, HelpNamesEveryVariable) {
    const std::string help = options_help();
    for (const OptionRow& row : option_rows()) EXPECT_THAT(help, HasSubstr(row.name));
}

TEST(Documents, TroubleshootingExplainsEveryWarning) {
    const std::string text = file_text(source_root() / "docs/TROUBLESHOOTING.md");
    for (const char* key :
         {"The log level is", "hard limit of locked memory", "netserver forks",
          "asks for huge pages", "speaks IGMPv", "may answer ARP", "no ring, its sockets",
          "cannot be preloaded", "has no effect in this version", "the old rules stay"})
        EXPECT_THAT(text, HasSubstr(key));
}

TEST(Documents, TheShippedRulesFileIsCleanAndLeavesDnsToTheKernel) {
    RuleContext c;
    c.program = "curl";
    const auto p = Rules::parse(file_text(source_root() / "etc/libvma.conf"), c);
    EXPECT_TRUE(p.ok());
    EXPECT_THAT(p.notes, IsEmpty());
    EXPECT_EQ(p.rules.size(), 1u);
    EXPECT_FALSE(p.rules.decide(Role::udp_connect, {IpAddr::v4(9, 9, 9, 9), 53}).offload);
    EXPECT_TRUE(p.rules.decide(Role::udp_connect, {IpAddr::v4(9, 9, 9, 9), 54}).offload);
    EXPECT_TRUE(p.rules.decide(Role::udp_sender, {IpAddr::v4(9, 9, 9, 9), 53}).offload);
}

class SnapshotFiles : public testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/tmp/vma-config-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        directory_ = name;
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }
    std::string path() const { return directory_ + "/rules"; }
    void write(std::string_view text) { std::ofstream(path(), std::ios::trunc) << text; }
    LoadedSnapshot load() {
        const std::string variable = "VMA_CONFIG_FILE=" + path();
        const char* environment[] = {variable.c_str()};
        return load_snapshot(environment, {{}, "prog"});
    }
    static bool offloads(const LoadedSnapshot& s, uint16_t port) {
        return s.snapshot->rules.decide(Role::tcp_server, {IpAddr::v4(10, 0, 0, 1), port}).offload;
    }
    std::string directory_;
};

TEST_F(SnapshotFiles, ReloadSwapsGoodFilesAndKeepsTheOldOnError) {
    write("use os tcp_server *:80\n");
    const LoadedSnapshot first = load();
    EXPECT_TRUE(first.rules_ok);
    EXPECT_THAT(first.notes, IsEmpty());
    EXPECT_FALSE(offloads(first, 80));

    write("use os tcp_server *:81\n");
    const LoadedSnapshot second = reload_rules(first.snapshot);
    EXPECT_TRUE(second.rules_ok);
    EXPECT_EQ(second.snapshot->generation, 1u);
    EXPECT_TRUE(offloads(second, 80));
    EXPECT_FALSE(offloads(second, 81));
    EXPECT_FALSE(offloads(first, 80));  // the old value is as it was

    write("use os tcp_server *:82\nuse nonsense\n");
    const LoadedSnapshot third = reload_rules(second.snapshot);
    EXPECT_FALSE(third.rules_ok);
    EXPECT_EQ(third.snapshot, second.snapshot);
    EXPECT_THAT(third.notes.back().text, HasSubstr("the old rules stay"));

    std::filesystem::remove(path());
    EXPECT_EQ(reload_rules(second.snapshot).snapshot, second.snapshot);
}

TEST_F(SnapshotFiles, ReloadOfTheSameRulesChangesNothing) {
    write("use os tcp_server *:80\n");
    const LoadedSnapshot first = load();
    const LoadedSnapshot again = reload_rules(first.snapshot);
    EXPECT_TRUE(again.rules_ok);
    EXPECT_EQ(again.snapshot, first.snapshot);
    ASSERT_EQ(again.notes.size(), 1u);
    EXPECT_EQ(again.notes[0].level, LogLevel::debug);
}

TEST_F(SnapshotFiles, AddedRulesOutliveAReload) {
    write("use os tcp_server *:80\nuse vma tcp_server *:82\n");
    const LoadedSnapshot added = add_rule(load().snapshot, "use os tcp_server *:81-82");
    ASSERT_TRUE(added.rules_ok);
    write("use os tcp_server *:83\nuse vma tcp_server *:82-83\n");
    const LoadedSnapshot second = reload_rules(added.snapshot);
    EXPECT_TRUE(second.rules_ok);
    EXPECT_EQ(second.snapshot->generation, 2u);
    EXPECT_TRUE(offloads(second, 80));
    EXPECT_FALSE(offloads(second, 81));
    EXPECT_FALSE(offloads(second, 82));  // what the program added stands before the file
    EXPECT_FALSE(offloads(second, 83));  // the file's own order stays
}

TEST_F(SnapshotFiles, ARelativeNameIsThatOfTheStart) {
    write("use os tcp_server *:80\n");
    const std::string before = std::filesystem::current_path();
    std::filesystem::current_path(directory_);
    const char* environment[] = {"VMA_CONFIG_FILE=rules"};
    const LoadedSnapshot first = load_snapshot(environment, {{}, "prog"});
    std::filesystem::current_path("/");
    write("use os tcp_server *:81\n");
    const LoadedSnapshot second = reload_rules(first.snapshot);
    std::filesystem::current_path(before);
    EXPECT_TRUE(second.rules_ok);
    EXPECT_FALSE(offloads(second, 81));
}

TEST_F(SnapshotFiles, ABrokenFileAtStartKeepsTheRulesBeforeTheError) {
    write("use os tcp_server *:80\nuse nonsense\n");
    const LoadedSnapshot s = load();
    EXPECT_FALSE(s.rules_ok);
    EXPECT_FALSE(offloads(s, 80));
    ASSERT_EQ(s.notes.size(), 1u);
    EXPECT_THAT(s.notes[0].text, HasSubstr(path() + ":2:5: expected a transport"));
}

TEST_F(SnapshotFiles, MissingOrSpecialFiles) {
    const LoadedSnapshot missing = load();
    EXPECT_FALSE(missing.rules_ok);
    EXPECT_THAT(missing.notes.at(0).text, HasSubstr("No such file"));
    EXPECT_TRUE(offloads(missing, 80));
    ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);  // must not block
    EXPECT_EQ(read_config_file(path()).error(), EINVAL);
    EXPECT_THAT(load().notes.at(0).text, HasSubstr("not a regular file"));
    EXPECT_EQ(read_config_file(directory_).error(), EINVAL);
}

TEST_F(SnapshotFiles, AddedRulesAndApplicationId) {
    write("application-id prog fast\nuse os tcp_server *:80\n");
    const std::string variable = "VMA_CONFIG_FILE=" + path();
    const char* environment[] = {variable.c_str(), "VMA_APPLICATION_ID=slow"};
    const LoadedSnapshot s = load_snapshot(environment, {{}, "prog"});
    ASSERT_EQ(s.notes.size(), 1u);
    EXPECT_THAT(s.notes[0].text, HasSubstr("VMA_APPLICATION_ID=slow"));
    const LoadedSnapshot added = add_rule(s.snapshot, "application-id * *\nuse os tcp_server *:81");
    EXPECT_TRUE(added.rules_ok);
    EXPECT_FALSE(offloads(added, 81));
    EXPECT_TRUE(offloads(s, 81));
    EXPECT_FALSE(add_rule(s.snapshot, "use").rules_ok);
}

}  // namespace
}  // namespace vma
