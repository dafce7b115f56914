// VMA_CONFIG_JSON: what a file says, in which order it counts, and what is told about a bad one.
#include "config/option_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/option_value.h"
#include "config/snapshot.h"

namespace vma {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> texts(const std::vector<Note>& notes) {
    std::vector<std::string> out;
    for (const Note& n : notes)
        if (n.level == LogLevel::warning) out.push_back(n.text);
    return out;
}

class SettingsFile : public testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/tmp/vma-json-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        directory_ = name;
        file_ = directory_ + "/settings.json";
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    LoadedSnapshot load(std::string_view text, std::vector<std::string> environment = {},
                        bool secure = false) {
        std::ofstream(file_, std::ios::trunc) << text;
        environment.push_back("VMA_CONFIG_JSON=" + file_);
        environment.push_back("VMA_CONFIG_FILE=/dev/null");
        std::vector<const char*> entries;
        for (const std::string& e : environment) entries.push_back(e.c_str());
        LoadContext context;
        context.parse.secure = secure;
        LoadedSnapshot made = load_snapshot(entries, context);
        // Of the rules file, which is none.
        std::erase_if(made.notes, [](const Note& n) { return n.text.starts_with("rules file"); });
        return made;
    }
    std::vector<std::string> complaints(std::string_view text) { return texts(load(text).notes); }

    std::string directory_, file_;
};

TEST_F(SettingsFile, SetsVariables) {
    const LoadedSnapshot s = load(R"({
        "$schema": "libvma.schema.json",
        "VMA_RX_POLL": -1,
        "VMA_TCP_NODELAY": true,
        "VMA_TCP_QUICKACK": 1,
        "VMA_RING_KIND": "packet",
        "VMA_TCP_CC_ALGO": 0,
        "VMA_TRACELEVEL": "debug",
        "VMA_LOG_FILE": "/tmp/caf\u00e9"
    })");
    EXPECT_THAT(texts(s.notes), IsEmpty());
    const Options& o = s.snapshot->options;
    EXPECT_EQ(o.rx_poll, -1);
    EXPECT_TRUE(o.tcp_nodelay && o.tcp_quickack);
    EXPECT_EQ(o.ring_kind, 4);
    EXPECT_EQ(o.tcp_cc_algo, 0);
    EXPECT_EQ(o.tracelevel, LogLevel::debug);
    EXPECT_EQ(o.log_file, "/tmp/caf\xc3\xa9");
    EXPECT_EQ(o.origin(Opt::rx_poll), Origin::file);
    EXPECT_TRUE(o.is_set(Opt::rx_poll) && o.is_given(Opt::rx_poll));
}

TEST_F(SettingsFile, StandsBetweenProfileAndEnvironment) {
    const char text[] = R"({"VMA_SPEC": "latency", "VMA_RX_POLL": 5, "VMA_MSS": 1000})";
    const Options from_file = load(text).snapshot->options;
    EXPECT_EQ(from_file.spec, Spec::latency);
    EXPECT_EQ(from_file.rx_poll, 5);       // not the profile's
    EXPECT_EQ(from_file.select_poll, -1);  // the profile's

    const Options o =
        load(text, {"VMA_RX_POLL=7", "XLIO_MSS=1200", "VMA_SPEC=none"}).snapshot->options;
    EXPECT_EQ(o.rx_poll, 7);
    EXPECT_EQ(o.mss, 1200u);
    EXPECT_EQ(o.select_poll, 100000);
    EXPECT_EQ(o.origin(Opt::rx_poll), Origin::environment);
}

TEST_F(SettingsFile, TheFileOfASecureProgramIsNotRead) {
    const LoadedSnapshot s = load(R"({"VMA_RX_POLL": 5})", {}, true);
    EXPECT_FALSE(s.snapshot->options.is_set(Opt::rx_poll));
    EXPECT_THAT(texts(s.notes), ElementsAre(HasSubstr("ignored VMA_CONFIG_FILE, VMA_CONFIG_JSON")));
}

// A bad member: file, line and variable are named, and the others count.
TEST_F(SettingsFile, BadMembersAreToldAndLeftOut) {
    const LoadedSnapshot s = load(
        "{\n"
        " \"VMA_RX_POLL\": \"ten\",\n"
        " \"VMA_MSS\": 4294967296,\n"
        " \"VMA_RX_POL\": 1,\n"
        " \"VMA_TCP_NODELAY\":\n   \"yes\",\n"
        " \"VMA_LOG_FILE\": 3,\n"
        " \"VMA_RING_KIND\": \"fast\",\n"
        " \"VMA_CONFIG_JSON\": \"more.json\",\n"
        " \"VMA_SPIN_MAX_USEC\": 9\n"
        "}\n");
    const auto at = [&](int line, const char* what) {
        return HasSubstr(file_ + ":" + std::to_string(line) + ": " + what);
    };
    EXPECT_THAT(
        texts(s.notes),
        testing::UnorderedElementsAre(
            at(2, "VMA_RX_POLL=ten: expected a number (-1..100000000); it is not used"),
            at(3, "VMA_MSS=\"4294967296\": out of range; expected 0..4294967295"),
            at(4, "VMA_RX_POL is not a variable of this library; the nearest is VMA_RX_POLL"),
            at(5, "VMA_TCP_NODELAY=yes: expected true or false"),
            at(7, "VMA_LOG_FILE=3: expected a text"),
            at(8, "VMA_RING_KIND=\"fast\": no such value; expected auto, "),
            at(9, "VMA_CONFIG_JSON is for the environment")));
    const Options& o = s.snapshot->options;
    for (const Opt id : {Opt::rx_poll, Opt::mss, Opt::tcp_nodelay, Opt::log_file, Opt::ring_kind})
        EXPECT_FALSE(o.is_set(id)) << option_row(id).name;
    EXPECT_EQ(o.spin_max_usec, 9u);
}

// Where the whole is not an object of plain values nothing of it counts.
TEST_F(SettingsFile, OfABrokenFileNothingIsUsed) {
    const struct {
        const char *text, *complaint;
    } table[] = {
        {"", ":1: no JSON at \""},
        {"{\"VMA_RX_POLL\": 5,\n \"VMA_MSS\": 1000,,\n}", ":2: no JSON at \""},
        {"{\"VMA_RX_POLL\": 5", ":1: no JSON at \""},
        {"{\"VMA_RX_POLL\": 5} {}", ":1: no JSON at \""},
        {"{\"VMA_RX_POLL\": 5, \"VMA_MSS\": nil}", ":1: no JSON at \""},
        {"\n[5]", ":2: an array where an object of variables is expected"},
        {"5", ":1: a value where an object of variables is expected"},
        {"{\"VMA_RX_POLL\": 5,\n\"VMA_MSS\": {\"VMA_MTU\": 1}}",
         ":2: VMA_MSS: an object where a number, a text, true or false is expected"},
        {"{\"VMA_RX_POLL\": 5,\n\n\"VMA_MSS\": [1]}", ":3: VMA_MSS: an array where"},
        {"{\"VMA_RX_POLL\": 5, \"VMA_MSS\": null}", ":1: VMA_MSS: null where"},
        {"{\"VMA_RX_POLL\": 5.5}", ":1: VMA_RX_POLL: a number that is not whole where"},
        {"{\"VMA_RX_POLL\": 99999999999999999999}", ":1: VMA_RX_POLL: a number that is not whole"},
        {"{\"VMA_RX_POLL\": 5,\n\"VMA_LOG_FILE\": \"a\\u0000b\"}",
         ":2: VMA_LOG_FILE: a text with a zero byte where"},
        {"{\"VMA_RX_POLL\": 5,\n\"VMA_RX_POLL\": 6}", ":2: VMA_RX_POLL is set again"},
    };
    for (const auto& bad : table) {
        SCOPED_TRACE(bad.text);
        const LoadedSnapshot s = load(bad.text);
        EXPECT_THAT(texts(s.notes),
                    ElementsAre(testing::AllOf(HasSubstr(file_ + bad.complaint),
                                               HasSubstr("; nothing of the file is used"))));
        EXPECT_FALSE(s.snapshot->options.is_set(Opt::rx_poll));
    }
}

TEST_F(SettingsFile, AFileThatCannotBeReadIsTold) {
    const std::string variable = "VMA_CONFIG_JSON=" + directory_ + "/none.json";
    const char* environment[] = {variable.c_str(), "VMA_CONFIG_FILE=/dev/null", "VMA_RX_POLL=5"};
    const LoadedSnapshot s = load_snapshot(environment, {});
    EXPECT_THAT(
        texts(s.notes),
        testing::Contains(HasSubstr("/none.json: No such file or directory; it is not used")));
    EXPECT_EQ(s.snapshot->options.rx_poll, 5);
}

// Every variable's default, written as the schema says it, is taken without a word.
TEST_F(SettingsFile, TheSchemaAndTheReaderAgree) {
    const auto schema = nlohmann::json::parse(options_schema());
    const auto& properties = schema["properties"];
    EXPECT_EQ(properties.size(), kOptionCount);  // $schema, and all but VMA_CONFIG_JSON
    for (const OptionRow& row : option_rows()) {
        SCOPED_TRACE(row.name);
        if (row.id == Opt::config_json) continue;
        ASSERT_TRUE(properties.contains(row.name));
        const auto& property = properties[row.name];
        EXPECT_THAT(property["description"].get<std::string>(), HasSubstr(row.help));
        std::vector<nlohmann::json> good;
        if (property.contains("enum")) {
            good = property["enum"].get<std::vector<nlohmann::json>>();
        } else if (property.contains("minimum")) {
            EXPECT_EQ(property["minimum"].get<int64_t>(), row.min);
            EXPECT_EQ(property["maximum"].get<int64_t>(), row.max);
            good = {row.ours.number, row.vma.number};
        } else if (property.value("type", nlohmann::json()) == "string" && row.ours.text) {
            good = {row.ours.text, row.vma.text};
        }
        for (const nlohmann::json& value : good) {
            const std::string text = nlohmann::json{{row.name, value}}.dump();
            const OptionFile file = read_option_file(text, "f");
            EXPECT_THAT(file.notes, IsEmpty());
            ASSERT_EQ(file.settings.size(), 1u);
            EXPECT_TRUE(setting_fits(row, file.settings[0].type)) << text;
            const ParsedOptions p = parse_options({}, {}, file.settings);
            EXPECT_EQ(p.options.origin(row.id), Origin::file) << text;
        }
    }
}

}  // namespace
}  // namespace vma
