// Two rings on devices of the software HCA, what their stations show, and how the devices are made to fail.
#pragma once

#include <poll.h>

#include <cstdlib>

#include "dev/verbs/library.h"
#include "ring_pair.h"
#include "softhca/fabric/wire.h"
#include "softhca/hca/faults.h"

namespace vma::test {

class DeviceRingTest : public testing::Test {
  protected:
    void open(const VerbsRingConfig& config) {
        pair = std::make_unique<VerbsPair>(config);
        ASSERT_NE(pair->ring[1], nullptr) << pair->why;
        wire = softhca::Wire::open(std::getenv("SOFTHCA_WIRE"));
        ASSERT_NE(wire, nullptr);
        const uint32_t first = VerbsPair::kFirstInterface + (config.mlx5 ? 2 : 0);
        for (uint32_t i = 0; i < softhca::kMaxStations; ++i)
            if (softhca::StationMap* map = wire->station(i))
                if ((*map)->ifindex - first < 2) station[(*map)->ifindex - first] = &map->station();
        ASSERT_TRUE(station[0] && station[1]);
    }
    // The raw QP of a side.
    softhca::QpShared& qp(int side) {
        for (softhca::QpShared& q : station[side]->qps)
            if (q.use == softhca::QpUse::raw) return q;
        ADD_FAILURE() << "no raw QP";
        return station[side]->qps[0];
    }
    unsigned rules(int side) {
        unsigned n = 0;
        for (const softhca::FlowRule& rule : station[side]->flows) n += rule.qp.load() != 0;
        return n;
    }
    void send(unsigned count, uint32_t payload = 18) {
        for (unsigned i = 0; i < count; ++i) {
            Frame f = build_frame(pair->spec(1000, 7000, payload));
            const TxFrame frames[] = {f.plain()};
            int why = 0;
            ASSERT_EQ(pair->ring[0]->send(frames, &why), 1u) << why;
        }
    }
    // Takes one packet and gives its buffer back.
    void receive_one() {
        Packet p[1];
        ASSERT_EQ(pair->ring[1]->recv(p), 1u);
    }

    // Makes the device of side 0, "a" (mlx5: "c"), or side 1, "b" ("d"), fail.
    void inject(const char* device, std::vector<std::string> fault) {
        std::string error;
        ASSERT_EQ(softhca::inject_fault(*wire, device, fault, &error), 1u) << error;
    }
    unsigned received() {
        Packet p[64];
        return pair->ring[1]->recv(p);
    }
    bool is_woken() {
        pollfd waits{pair->ring[1]->wake_fd(), POLLIN, 0};
        return ::poll(&waits, 1, 0) == 1;
    }

    std::unique_ptr<VerbsPair> pair;
    std::unique_ptr<softhca::Wire> wire;
    softhca::Station* station[2] = {};
};

}  // namespace vma::test
