// RulesWatch against the ways in which programs change a file.
#include "engine/rules_watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace vma {
namespace {

namespace fs = std::filesystem;

class Watch : public testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/tmp/vma-watch-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        top_ = name;
        folder_ = top_ / "etc";
        fs::create_directory(folder_);
        file_ = folder_ / "rules";
    }
    void TearDown() override {
        watch_.reset();
        fs::remove_all(top_);
    }
    void open() {
        ASSERT_TRUE(watch_.open(file_).ok());
        EXPECT_FALSE(told());
    }
    static void write(const fs::path& p, const char* text) {
        std::ofstream(p, std::ios::trunc) << text;
    }
    // inotify queues an event before the call that causes it returns, so there is nothing to wait for.
    bool told() {
        pollfd p{watch_.fd(), POLLIN, 0};
        const bool readable = poll(&p, 1, 0) == 1;
        const bool changed = watch_.process();
        EXPECT_TRUE(readable || !changed);
        return changed;
    }
    fs::path top_, folder_, file_;
    RulesWatch watch_;
};

TEST_F(Watch, AFileWrittenInPlaceCountsWhenItIsClosed) {
    write(file_, "a");
    open();
    {
        std::ofstream out(file_, std::ios::trunc);
        out << "half";
        out.flush();
        EXPECT_FALSE(told());
    }
    EXPECT_TRUE(told());
    EXPECT_FALSE(told());
}

TEST_F(Watch, EditorsThatRename) {
    write(file_, "a");
    open();
    for (int i = 0; i < 3; i++) {
        write(folder_ / "rules.new", "b");
        EXPECT_FALSE(told()) << "another file";
        fs::rename(folder_ / "rules.new", file_);
        EXPECT_TRUE(told());
        write(file_, "c");  // the new file, in place
        EXPECT_TRUE(told());
    }
    fs::rename(file_, folder_ / "rules~");  // vim: the old one becomes the backup
    EXPECT_TRUE(told());
    write(file_, "d");
    EXPECT_TRUE(told());
}

TEST_F(Watch, AFileThatComesLaterOrGoesAndReturns) {
    open();
    {
        std::ofstream out(file_);
        EXPECT_FALSE(told()) << "created and still empty";
        out << "x";
    }
    EXPECT_TRUE(told());
    fs::remove(file_);
    EXPECT_TRUE(told());
    write(file_, "y");
    EXPECT_TRUE(told());
    fs::remove(file_);
    write(top_ / "other", "z");
    EXPECT_TRUE(told());
    fs::create_hard_link(top_ / "other", file_);
    EXPECT_TRUE(told());
}

TEST_F(Watch, LinksAreFollowed) {
    for (const char* v : {"v1", "v2"}) {
        fs::create_directory(top_ / v);
        write(top_ / v / "rules", v);
    }
    // As mounted configuration maps have it: the file is a link through a link that is renamed into place.
    fs::create_symlink(top_ / "v1", folder_ / "data");
    fs::create_symlink("data/rules", file_);
    open();
    write(top_ / "v1/rules", "in place");
    EXPECT_TRUE(told());
    fs::create_symlink(top_ / "v2", folder_ / "data.new");
    EXPECT_FALSE(told());
    fs::rename(folder_ / "data.new", folder_ / "data");
    EXPECT_TRUE(told());
    write(top_ / "v2/rules", "in place");
    EXPECT_TRUE(told());
    write(top_ / "v1/rules", "the old one");
    EXPECT_FALSE(told());
    fs::remove(file_);
    EXPECT_TRUE(told());
    fs::create_symlink(top_ / "v1/rules", file_);
    EXPECT_TRUE(told());
}

TEST_F(Watch, ADirectoryThatGoesIsLookedForUntilItIsBack) {
    write(file_, "a");
    open();
    EXPECT_FALSE(watch_.retry());
    fs::rename(folder_, top_ / "away");
    EXPECT_TRUE(told());
    EXPECT_FALSE(watch_.retry());
    write(top_ / "away/rules", "not ours any more");
    EXPECT_FALSE(told());
    fs::create_directory(folder_);
    EXPECT_TRUE(watch_.retry());
    EXPECT_FALSE(watch_.retry());
    write(file_, "b");
    EXPECT_TRUE(told());
    fs::remove_all(folder_);
    EXPECT_TRUE(told());
    EXPECT_FALSE(watch_.retry());
}

TEST_F(Watch, OtherFilesSayNothing) {
    write(file_, "a");
    open();
    write(folder_ / "rules2", "b");
    write(folder_ / "rule", "b");
    fs::remove(folder_ / "rules2");
    EXPECT_FALSE(told());
}

}  // namespace
}  // namespace vma
