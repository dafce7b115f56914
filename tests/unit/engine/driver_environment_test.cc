#include "engine/driver_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "support/parsed_options.h"

namespace vma {
namespace {

using Environment = std::map<std::string, std::string>;
constexpr const char* kNames[] = {
    "MLX4_DEVICE_FATAL_CLEANUP", "MLX5_DEVICE_FATAL_CLEANUP", "RDMAV_ALLOW_DISASSOC_DESTROY",
    "MLX4_POST_SEND_PREFER_BF",  "MLX5_POST_SEND_PREFER_BF",  "MLX5_SHUT_UP_BF",
    "MLX_QP_ALLOC_TYPE",         "MLX_CQ_ALLOC_TYPE",         "RDMAV_HUGEPAGES_SAFE"};

// What is there after `before` and the settings.
Environment after(const std::vector<std::string>& settings, const Environment& before = {}) {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : before) setenv(name.c_str(), value.c_str(), 1);
    set_driver_environment(options(settings));
    Environment seen;
    for (const char* name : kNames)
        if (const char* value = std::getenv(name)) seen[name] = value;
    return seen;
}

const Environment kAlways = {{"MLX4_DEVICE_FATAL_CLEANUP", "1"},
                             {"MLX5_DEVICE_FATAL_CLEANUP", "1"},
                             {"RDMAV_ALLOW_DISASSOC_DESTROY", "1"}};

Environment with(Environment more) {
    more.insert(kAlways.begin(), kAlways.end());
    return more;
}

TEST(DriverEnvironment, BlueFlame) {
    const Environment on = with({{"MLX4_POST_SEND_PREFER_BF", "1"},
                                 {"MLX5_POST_SEND_PREFER_BF", "1"},
                                 {"MLX5_SHUT_UP_BF", "0"}});
    EXPECT_EQ(after({}), on);
    EXPECT_EQ(after({}, {{"MLX5_SHUT_UP_BF", "1"}}), on);
    EXPECT_EQ(after({"VMA_BF=0"}), with({{"MLX4_POST_SEND_PREFER_BF", "0"},
                                         {"MLX5_POST_SEND_PREFER_BF", "0"},
                                         {"MLX5_SHUT_UP_BF", "1"}}));
}

TEST(DriverEnvironment, MemoryOfTheQueuesUnlessTheProgramHasSaid) {
    const auto types = [](const char* setting, const Environment& before = {}) {
        Environment e = after({setting}, before);
        return std::vector<std::string>{e["MLX_QP_ALLOC_TYPE"], e["MLX_CQ_ALLOC_TYPE"],
                                        e["RDMAV_HUGEPAGES_SAFE"]};
    };
    using Types = std::vector<std::string>;
    EXPECT_EQ(types("VMA_MEM_ALLOC_TYPE=0"), (Types{"ANON", "ANON", ""}));
    EXPECT_EQ(types("VMA_MEM_ALLOC_TYPE=1"), (Types{"PREFER_CONTIG", "PREFER_CONTIG", ""}));
    EXPECT_EQ(types("VMA_MEM_ALLOC_TYPE=2"), (Types{"ALL", "ALL", "1"}));
    EXPECT_EQ(types("VMA_MEM_ALLOC_TYPE=2", {{"MLX_QP_ALLOC_TYPE", "ANON"}}),
              (Types{"ANON", "ALL", "1"}));
}

}  // namespace
}  // namespace vma
