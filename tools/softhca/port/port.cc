// The kernel's side of a software HCA's port, as a card has it: what no flow rule of the wire takes and is for this port (or
// for everybody) reaches the kernel by a TAP interface, and what the kernel sends by that goes onto the wire.
//
//     softhca_port IFACE      makes or joins the TAP interface IFACE of this namespace, prints "ready" and runs until killed
// A port that is down takes the carrier off the interface.
//
// A program like any other on libibverbs: one raw Ethernet QP with the ALL_DEFAULT rule, whose priority is below that of every
// rule with fields. SOFTHCA_WIRE chooses the wire, as for the programs that it is to reach.
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr uint32_t kBuffers = 1024,
                   kRoom = 10240;  // receive requests; bytes of a frame, jumbo frames included

[[noreturn]] void fail(const std::string& what, int error) {
    std::fprintf(stderr, "softhca_port: %s: %s\n", what.c_str(), std::strerror(error));
    std::exit(1);
}

template <class T>
T* need(T* p, const char* what) {
    if (!p) fail(what, errno);
    return p;
}

void must(int error, const char* what) {
    if (error) fail(what, error > 0 ? error : errno);
}

int open_tap(const char* name) {
    const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) fail("/dev/net/tun", errno);
    ifreq request{};
    if (std::strlen(name) >= sizeof(request.ifr_name)) fail(name, ENAMETOOLONG);
    std::strcpy(request.ifr_name, name);
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (ioctl(fd, TUNSETIFF, &request) < 0) fail(std::string("TAP interface ") + name, errno);
    return fd;
}

class Port {
  public:
    explicit Port(int tap) : tap_(tap) {
        int count = 0;
        ibv_device** list = need(ibv_get_device_list(&count), "no devices");
        if (count == 0) fail("the wire has no device for this interface", ENODEV);
        context_ = need(ibv_open_device(list[0]), "opening the device");
        ibv_free_device_list(list);
        pd_ = need(ibv_alloc_pd(context_), "protection domain");
        channel_ = need(ibv_create_comp_channel(context_), "completion channel");
        received_ =
            need(ibv_create_cq(context_, kBuffers, nullptr, channel_, 0), "completion queue");
        sent_ = need(ibv_create_cq(context_, 16, nullptr, nullptr, 0), "completion queue");
        memory_.resize(size_t(kBuffers + 1) * kRoom);
        constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE;  // an int: the macro compares enumerations
        key_ = need(ibv_reg_mr(pd_, memory_.data(), memory_.size(), kAccess), "memory")->lkey;
        start_queue();
    }

    int wake_fd() const { return channel_->fd; }
    int event_fd() const { return context_->async_fd; }

    // A kernel's interface has no carrier while its port is down.
    void take_event() {
        ibv_async_event event;
        must(ibv_get_async_event(context_, &event), "event of the device");
        ibv_ack_async_event(&event);
        if (event.event_type == IBV_EVENT_DEVICE_FATAL) fail("the device is lost", EIO);
        if (event.event_type != IBV_EVENT_PORT_ERR && event.event_type != IBV_EVENT_PORT_ACTIVE)
            return;
        int carrier = event.event_type == IBV_EVENT_PORT_ACTIVE;
        must(ioctl(tap_, TUNSETCARRIER, &carrier), "carrier");
    }

    // What has come off the wire goes to the kernel. Asks to be woken for the next before it looks, so that none is missed.
    void to_kernel() {
        ibv_cq* cq;
        void* unused;
        must(ibv_get_cq_event(channel_, &cq, &unused), "completion event");
        ibv_ack_cq_events(cq, 1);
        must(ibv_req_notify_cq(received_, 0), "asking for completion events");
        ibv_wc done[32];
        int n;
        while ((n = ibv_poll_cq(received_, 32, done)) > 0)
            for (int i = 0; i < n; i++) {
                if (done[i].status != IBV_WC_SUCCESS) fail(ibv_wc_status_str(done[i].status), EIO);
                // A TAP refuses frames while its interface is down; a card drops them, too.
                (void)!write(tap_, room(uint32_t(done[i].wr_id)), done[i].byte_len);
                post_receive(uint32_t(done[i].wr_id));
            }
        if (n < 0) fail("polling the completion queue", EIO);
    }

    // What the kernel has sent goes onto the wire.
    void to_wire() {
        for (;;) {
            const ssize_t n = read(tap_, room(kBuffers), kRoom);
            if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == EIO))
                return;  // EIO: the interface is down
            if (n < 0) fail("reading the TAP interface", errno);
            ibv_sge piece{uint64_t(room(kBuffers)), uint32_t(n), key_};
            ibv_send_wr request{};
            request.sg_list = &piece;
            request.num_sge = 1;
            request.opcode = IBV_WR_SEND;
            request.send_flags = IBV_SEND_SIGNALED;
            ibv_send_wr* bad;
            must(ibv_post_send(qp_, &request, &bad), "sending");
            ibv_wc done;
            int got;
            while ((got = ibv_poll_cq(sent_, 1, &done)) == 0) {
            }
            if (got < 0 || done.status != IBV_WC_SUCCESS)
                fail("sending a frame of the kernel", EIO);
        }
    }

  private:
    uint8_t* room(uint32_t i) { return memory_.data() + size_t(i) * kRoom; }

    void post_receive(uint32_t i) {
        ibv_sge piece{uint64_t(room(i)), kRoom, key_};
        ibv_recv_wr request{i, nullptr, &piece, 1};
        ibv_recv_wr* bad;
        must(ibv_post_recv(qp_, &request, &bad), "posting a receive request");
    }

    void start_queue() {
        ibv_qp_init_attr wanted{};
        wanted.send_cq = sent_;
        wanted.recv_cq = received_;
        wanted.cap = {16, kBuffers, 1, 1, 0};
        wanted.qp_type = IBV_QPT_RAW_PACKET;
        qp_ = need(ibv_create_qp(pd_, &wanted), "queue pair");
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        must(ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PORT), "queue pair to INIT");
        for (uint32_t i = 0; i < kBuffers; i++) post_receive(i);
        must(ibv_req_notify_cq(received_, 0), "asking for completion events");
        attr.qp_state = IBV_QPS_RTR;
        must(ibv_modify_qp(qp_, &attr, IBV_QP_STATE), "queue pair to RTR");
        attr.qp_state = IBV_QPS_RTS;
        must(ibv_modify_qp(qp_, &attr, IBV_QP_STATE), "queue pair to RTS");
        ibv_flow_attr rule{};
        rule.type = IBV_FLOW_ATTR_ALL_DEFAULT;
        rule.size = sizeof(rule);
        rule.port = 1;
        need(ibv_create_flow(qp_, &rule), "the default rule");
    }

    int tap_;
    ibv_context* context_;
    ibv_pd* pd_;
    ibv_comp_channel* channel_;
    ibv_cq *received_, *sent_;
    std::vector<uint8_t> memory_;  // kBuffers to receive, one to send
    uint32_t key_;
    ibv_qp* qp_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2 || argv[1][0] == '-') {
        std::fprintf(stderr, "usage: softhca_port IFACE\n");
        return 2;
    }
    const int tap = open_tap(argv[1]);
    setenv("SOFTHCA", (std::string("name=port netdev=") + argv[1]).c_str(), 1);
    Port port(tap);
    std::puts("ready");
    std::fflush(stdout);
    for (;;) {
        pollfd fds[] = {
            {tap, POLLIN, 0}, {port.wake_fd(), POLLIN, 0}, {port.event_fd(), POLLIN, 0}};
        if (poll(fds, 3, -1) < 0 && errno != EINTR) fail("poll", errno);
        if (fds[2].revents & POLLIN) port.take_event();
        if (fds[0].revents) port.to_wire();
        if (fds[1].revents & POLLIN) port.to_kernel();
    }
}
