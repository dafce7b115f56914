// One test per file tcp/<topic>/<behaviour>.script.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest-spi.h>

#include "script/tcp/script.h"

namespace vma::tcp {
namespace {

std::vector<std::string> scripts() {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(VMA_SCRIPTS))
        if (entry.path().extension() == ".script") all.push_back(entry.path().string());
    std::sort(all.begin(), all.end());
    return all;
}

std::string name_of(const std::string& path) {
    const std::filesystem::path p(path);
    return p.parent_path().filename().string() + "_" + p.stem().string();
}

class Scripts : public testing::TestWithParam<std::string> {};

TEST_P(Scripts, Runs) {
    std::ifstream file(GetParam());
    ASSERT_TRUE(file.good());
    std::stringstream text;
    text << file.rdbuf();
    SCOPED_TRACE(GetParam());
    Script().run(text.str());
}

INSTANTIATE_TEST_SUITE_P(Tcp, Scripts, testing::ValuesIn(scripts()),
                         [](const auto& file) { return name_of(file.param); });

// The runner notices what is wrong: a script that must fail, fails.
TEST(Runner, NoticesAWrongSegmentAndASilentOne) {
    const char* const wrong[] = {
        "title RFC 9293: x\nestablished\nwrite 10\nout A seq=2 len=10\n",
        "title RFC 9293: x\nestablished\nwrite 10\nquiet 10ms\n",
        "title RFC 9293: x\nestablished\nwrite 10\n",
        "title RFC 9293: x\nestablished\nout A\n",
        "title RFC 9293: x\nestablished\nexpect state=CLOSED\n",
        "title RFC 9293: x\nestablished\nnonsense\n",
        "title RFC 9293: x\nestablished typo=1\n",
        "established\n",
    };
    for (const char* text : wrong) {
        testing::TestPartResultArray results;
        {
            testing::ScopedFakeTestPartResultReporter reporter(
                testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
            Script().run(text);
        }
        EXPECT_GT(results.size(), 0) << text;
    }
}

}  // namespace
}  // namespace vma::tcp
