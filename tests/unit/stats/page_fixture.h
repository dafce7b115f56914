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
    Pages() { begin_in("/tmp"); }
    ~Pages() override { end(); }
    void begin_in(const std::string& parent) {
        directory = parent + "/vma-stats-test-XXXXXX";
        EXPECT_NE(mkdtemp(directory.data()), nullptr) << parent;
        forget_in_child();  // nothing of the test before
        configure(directory, "unit-test", "1.2.3");
    }
    void end() {
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
    static void count(RowHandle& row, int fd, uint64_t packets) {
        SocketNumbers n;
        n.rx_packets = packets;
        set_socket(row, udp(fd, Path::offloaded, Reason::none), &n);
    }
    static bool due_now(Instant now) {
        look();
        return due(now);
    }
    static uint64_t asked_now(Verb verb) {
        look();
        return asked(verb);
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
