// Operations without a kernel: sockets are what a table says they are, and everything that is asked for is written down.
#pragma once

#include <cerrno>
#include <map>
#include <string>
#include <vector>

#include "broker/dispatch.h"

namespace vma::broker {

class FakeOperations final : public Operations {
  public:
    static constexpr uint64_t kCookie = 77;
    std::map<int, SocketFacts> sockets;
    std::vector<std::string> calls;
    std::vector<uint8_t> file;  // what every memfd holds
    bool ports_taken = false;
    bool left = false;
    size_t held = 0;

    static SocketFacts tcp(const Endpoint& local = {}) {
        SocketFacts f;
        f.tcp = true;
        f.netns_cookie = kCookie;
        f.local = local;
        return f;
    }

    SocketFacts inspect(int fd) override {
        const auto it = sockets.find(fd);
        return it == sockets.end() ? SocketFacts{} : it->second;
    }
    uint64_t netns_cookie() override { return kCookie; }
    Status bind(int, const Endpoint&) override {
        calls.push_back("bind");
        return ports_taken ? Status(Errno{EADDRINUSE}) : Status();
    }
    Result<ByteView> read_queues(int, uint32_t bytes) override {
        if (file.size() < bytes) return Errno{EINVAL};
        return ByteView(file).first(bytes);
    }
    Status restore(int, const tcp::Snapshot&, const RepairQueues& q, RepairOptions&) override {
        calls.push_back("restore");
        unacked = q.unacked.size(), unsent = q.unsent.size(), unread = q.unread.size();
        return {};
    }
    void cancel(int, const RepairOptions& o) override { note("cancel", o); }
    Status finish(int, const tcp::Snapshot&, const RepairQueues&, const RepairOptions& o) override {
        note("finish", o);
        return {};
    }
    Status checkpoint(int, RepairImage& image, int&) override {
        calls.push_back("checkpoint");
        image = {};
        return {};
    }
    void resume(int, const RepairImage& image) override { note("resume", image.options); }
    Status release(int, const RepairImage& image) override {
        note("release", image.options);
        return {};
    }
    Status watch(const Watch&, Fds&) override {
        calls.push_back("watch");
        return {};
    }
    Status hold(const HeldList& list, Fds&) override {
        calls.push_back("hold");
        held += list.count;
        return {};
    }
    void drop(const HeldList& list) override {
        calls.push_back("drop");
        held -= list.count < held ? list.count : held;
    }
    void leaving(bool leaves) override { left = leaves; }
    Status open_ring(const OpenRing& request, OpenedRing& out) override {
        calls.push_back("open_ring");
        if (request.ifindex != kInterface) return Errno{ENODEV};
        out.slot = next_slot++;
        out.token = 1000 + out.slot;
        for (unsigned i = 0; i < kRingFds; i++) out.fds[i] = (1 << 21) + int(i);  // never open
        return {};
    }
    Status show_ring(const ShowRing& ring, int doorbell) override {
        calls.push_back("show_ring");
        const auto it = doorbell_of.find(ring.slot);
        return it != doorbell_of.end() && it->second == doorbell ? Status() : Status(Errno{EACCES});
    }
    bool has_address(const IpAddr& address) override { return address != kElsewhere; }
    Status steer(const Steer& flow) override {
        calls.push_back("steer");
        if (firewall) return Errno{EKEYREJECTED};
        flows.push_back(flow);
        return {};
    }
    void unsteer(const Steer& flow) override {
        calls.push_back("unsteer");
        unsteered.push_back(flow);
    }
    Status share(Fds&) override {
        calls.push_back("share");
        return neighbours ? Status() : Status(Errno{EDQUOT});
    }
    Status publish(const Endpoint& local) override {
        published.push_back(local);
        return {};
    }
    bool neighbours = true;
    std::vector<Endpoint> published;
    static constexpr int kInterface = 2;
    static constexpr IpAddr kElsewhere = IpAddr::v4(10, 0, 0, 77);
    uint32_t next_slot = 1;
    std::map<uint32_t, int> doorbell_of;
    bool firewall = false;
    std::vector<Steer> flows, unsteered;

    size_t unacked = 0, unsent = 0, unread = 0;
    uint32_t known = 0;  // RepairOptions::known of the last call

  private:
    void note(const char* what, const RepairOptions& options) {
        calls.push_back(what);
        known = options.known;
    }
};

}  // namespace vma::broker
