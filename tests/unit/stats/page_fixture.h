// A private directory for pages, and this process's page in it, gone at the end of each test.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "stats/publisher.h"
#include "stats/reader.h"

namespace vma::stats {

class Pages : public testing::Test {
  protected:
    Pages() {
        char name[] = "/tmp/vma-stats-test-XXXXXX";
        directory = mkdtemp(name);
        forget_in_child();  // nothing of the test before
        configure(directory, "unit-test", "1.2.3");
    }
    ~Pages() override {
        withdraw(false);
        std::filesystem::remove_all(directory);
    }
    uint32_t self() const { return uint32_t(getpid()); }
    std::string path(uint32_t pid) const { return directory + "/vmastat." + std::to_string(pid); }

    static SocketIdentity udp(int fd, Path path, Reason reason) {
        SocketIdentity id;
        id.fd = fd;
        id.domain = AF_INET;
        id.type = SOCK_DGRAM;
        id.protocol = IPPROTO_UDP;
        id.path = path;
        id.reason = reason;
        id.inode = uint64_t(fd) + 1000;
        id.cookie = uint64_t(fd) + 5000;
        return id;
    }
    Snapshot read() {
        std::string why;
        auto page = PageFile::open(directory, self(), &why);
        EXPECT_TRUE(page) << why;
        Snapshot out;
        if (page) {
            EXPECT_TRUE(page->read(out, &why)) << why;
        }
        return out;
    }

    std::string directory;
};

}  // namespace vma::stats
