#include "dev/verbs/verbs_ring.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "dev/device_queues.h"
#include "dev/mlx5/library.h"
#include "dev/mlx5/receive.h"
#include "dev/mlx5/transmit.h"
#include "dev/verbs/doorbell.h"
#include "dev/verbs/flows.h"
#include "dev/verbs/port.h"
#include "dev/verbs/program_queues.h"
#include "dev/verbs/user_memory.h"
#include "dev/verbs/verbs_receive.h"
#include "dev/verbs/verbs_transmit.h"

namespace vma {
namespace {

constexpr uint32_t kTxBytes = 4u << 20;
constexpr uint32_t kTsoHeader = 14 + 4 + 60 + 60;

class VerbsRing final : public Ring, public DeviceQueues {
  public:
    explicit VerbsRing(const VerbsRingConfig& config) : config_(config) {}
    ~VerbsRing() override { close(); }

    Status open(std::string* why);

    const RingCaps& caps() const override { return caps_; }
    unsigned recv(std::span<Packet> out) override {
        if (receiver_->failed() || transmitter_->failed()) recover();
        return receiver_->recv(out);
    }
    RingBacklog backlog() const override { return receiver_->backlog(); }
    unsigned send(std::span<const TxFrame> frames, int* why) override {
        if (transmitter_->failed()) recover();
        if (lost()) return *why = ENETDOWN, 0;
        return transmitter_->send(frames, why);
    }
    Status steer(const FlowKey& key, int) override {
        port_.follow_fds();
        return flows_.add(key);
    }
    void unsteer(const FlowKey& key) override {
        port_.follow_fds();
        flows_.remove(key);
    }

    int wake_fd() const override { return bell_.fd(); }
    bool arm() override;
    void disarm() override { acknowledge(); }
    bool has_news() const override { return !lost() && port_.has_event(); }
    void tend() override;
    bool lost() const override { return lost_.load(std::memory_order_relaxed); }
    bool read_counter(uint64_t* ticks) override;
    RingCounters counters() const override;
    Duration adapts_every() const override { return config_.adaptive.every; }
    void adapt(Duration time) override;

    DeviceQueues* queues() override { return this; }
    Status moderate(uint32_t frames, uint32_t usec) override;
    Status register_memory(void* at, size_t bytes, uint32_t* key) override;
    Status deregister_memory(void* at, size_t bytes) override;
    DeviceFacts facts() const override {
        return facts_of(port_, queues_.qp, queues_.send, queues_.receive);
    }
    Status arm(int*) override { return Errno{EOPNOTSUPP}; }
    DeviceQueues* program_queues() override { return program_queues_.get(); }
    Result<DeviceQueues*> open_program_queues() override;

  private:
    // Memory that the device knows.
    struct Area {
        uint8_t* at = nullptr;
        size_t bytes = 0;
        ibv_mr* mr = nullptr;
    };
    Status make_area(Area& area, size_t bytes, const RingMemory& from);
    // `unused`: nobody reads there any more; else memory of the program is not given back.
    void free_area(Area& area, const RingMemory& from, bool unused);
    Status make_memory();
    Status make_queues();
    ibv_cq_ex* make_stamped_cq();
    Status make_qp();
    Status start_qp();
    void recover();
    Status empty_qp();
    Status replace_queues();
    void destroy(const VerbsQueues& queues);
    Status use_queues();
    void acknowledge();
    Status moderate(Moderation to);
    void close();
    // Of memory that a request names. A request of an mlx5 ring has its inlined bytes in one piece, and the rest in another.
    uint32_t most_pieces() const {
        const auto most = uint32_t(port_.attributes().orig_attr.max_sge);
        return config_.mlx5 ? 1 : std::min(most, kVerbsMostPieces);
    }
    // Are there times of the device's clock, and wanted?
    bool stamps() const {
        const ibv_device_attr_ex& device = port_.attributes();
        return config_.stamps && device.completion_timestamp_mask != 0 &&
               device.hca_core_clock != 0;
    }
    uint32_t room() const { return (config_.mtu + 18 + 63) & ~63u; }
    const VerbsLibrary& verbs() const { return port_.library(); }

    VerbsRingConfig config_;
    RingCaps caps_;
    VerbsPort port_;
    ibv_pd* pd_ = nullptr;
    Doorbell bell_;
    VerbsQueues queues_;
    Area receive_, send_;
    std::unique_ptr<QueueReceiver> receiver_;
    std::unique_ptr<QueueTransmitter> transmitter_;
    VerbsFlows flows_;
    UserMemory user_memory_;
    std::unique_ptr<ProgramQueues> program_queues_;
    std::atomic<bool> lost_{false};
    uint64_t lost_before_ = 0;
    uint64_t wakeups_ = 0;
    Moderation moderation_;                          // the device's
    uint64_t frames_before_ = 0, bytes_before_ = 0;  // when it last followed
};

Status VerbsRing::make_area(Area& area, size_t bytes, const RingMemory& from) {
    area.bytes = bytes;
    area.at = static_cast<uint8_t*>(from.take ? from.take(bytes)
                                              : config_.arena->allocate(bytes, Arena::kPage));
    if (area.at == nullptr) return Errno{ENOMEM};
    area.mr = verbs().reg_mr(pd_, area.at, bytes, IBV_ACCESS_LOCAL_WRITE);
    return area.mr == nullptr ? Status(Errno{errno}) : Status();
}

void VerbsRing::free_area(Area& area, const RingMemory& from, bool unused) {
    if (area.mr != nullptr) verbs().dereg_mr(area.mr);
    if (from.take == nullptr)
        config_.arena->free(area.at, area.bytes, Arena::kPage);
    else if (area.at != nullptr && unused)
        from.give(area.at);
}

Status VerbsRing::make_memory() {
    pd_ = verbs().alloc_pd(port_.context());
    if (pd_ == nullptr) return Errno{errno};
    const Status received =
        make_area(receive_, size_t(config_.rx_requests) * room(), config_.receive_memory);
    return received ? make_area(send_, kTxBytes, config_.send_memory) : received;
}

// A queue whose completions have times of the device's clock. Null: the device gives none.
ibv_cq_ex* VerbsRing::make_stamped_cq() {
    ibv_cq_init_attr_ex a{};
    a.cqe = config_.rx_requests;
    a.channel = bell_.channel();
    a.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    return ibv_create_cq_ex(port_.context(), &a);
}

// Providers tell ticks as nanoseconds (mlx5), or the time that they are nanoseconds of.
bool VerbsRing::read_counter(uint64_t* ticks) {
    ibv_values_ex values{};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    if (ibv_query_rt_values_ex(port_.context(), &values) != 0 ||
        !(values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK))
        return false;
    *ticks = uint64_t(values.raw_clock.tv_sec) * 1000000000 + uint64_t(values.raw_clock.tv_nsec);
    return true;
}

Status VerbsRing::make_queues() {
    moderation_ = {};
    // In memory every completion of an mlx5 device has its time.
    if (stamps() && !config_.mlx5) queues_.stamped = make_stamped_cq();
    queues_.receive = queues_.stamped != nullptr
                          ? ibv_cq_ex_to_cq(queues_.stamped)
                          : verbs().create_cq(port_.context(), int(config_.rx_requests), nullptr,
                                              bell_.channel(), 0);
    if (queues_.receive == nullptr) return Errno{errno};
    if (stamps() && (config_.mlx5 || queues_.stamped != nullptr)) {
        const ibv_device_attr_ex& device = port_.attributes();
        caps_.counter_hz = device.hca_core_clock * 1000;
        caps_.counter_mask = device.completion_timestamp_mask;
    }
    if (config_.moderation.count > 1) (void)moderate(config_.moderation);
    queues_.send =
        verbs().create_cq(port_.context(), int(config_.tx_requests), nullptr, nullptr, 0);
    return queues_.send == nullptr ? Status(Errno{errno}) : make_qp();
}

Status VerbsRing::make_qp() {
    const verbs_context* table = verbs_get_ctx_op(port_.context(), create_qp_ex);
    if (table == nullptr) return Errno{EOPNOTSUPP};
    const bool tso =
        port_.attributes().tso_caps.max_tso > kTsoHeader &&
        ibv_is_qpt_supported(port_.attributes().tso_caps.supported_qpts, IBV_QPT_RAW_PACKET);
    ibv_qp_init_attr_ex a{};
    a.send_cq = queues_.send;
    a.recv_cq = queues_.receive;
    a.cap = {config_.tx_requests, config_.rx_requests, most_pieces(), 1, config_.max_inline};
    a.qp_type = IBV_QPT_RAW_PACKET;
    a.pd = pd_;
    a.comp_mask = IBV_QP_INIT_ATTR_PD;
    if (tso) {
        a.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
        a.max_tso_header = kTsoHeader;
    }
    queues_.qp = table->create_qp_ex(port_.context(), &a);
    if (queues_.qp == nullptr &&
        errno == EINVAL) {  // fewer bytes inside a request than were asked for
        a.cap.max_inline_data = config_.max_inline = 0;
        queues_.qp = table->create_qp_ex(port_.context(), &a);
    }
    if (queues_.qp == nullptr) return Errno{errno};
    caps_.mtu = config_.mtu;
    caps_.tx_checksum =
        (port_.attributes().orig_attr.device_cap_flags & IBV_DEVICE_RAW_IP_CSUM) != 0;
    caps_.rx_checksum = (port_.attributes().raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM) != 0;
    caps_.copies_on_send = true;
    if (tso && caps_.tx_checksum) {
        caps_.max_gso_bytes = std::min(port_.attributes().tso_caps.max_tso, 65535u + 14) - 14;
        caps_.max_gso_segments = 64;
    }
    return {};
}

// From RESET to sending. Flow rules stay with the QP.
Status VerbsRing::start_qp() {
    ibv_qp_attr a{};
    a.port_num = port_.number();
    for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
        a.qp_state = state;
        const int port = state == IBV_QPS_INIT ? IBV_QP_PORT : 0;
        if (const int error = verbs().modify_qp(queues_.qp, &a, IBV_QP_STATE | port))
            return Errno{error};
        if (state == IBV_QPS_RTR) receiver_->started();
        if (state != IBV_QPS_INIT) continue;
        if (const Status posted = receiver_->post(); !posted) return posted;
    }
    return {};
}

Status VerbsRing::open(std::string* why) {
    if (const Status found = port_.open(config_.ifindex, why); !found) return found;
    if (config_.mlx5) {
        const Mlx5Library* const library = Mlx5Library::get();
        if (library == nullptr || !library->is_supported(port_.context()->device)) {
            *why = library == nullptr ? "libmlx5.so.1 cannot be loaded: install rdma-core"
                                      : "the RDMA device of this interface is no mlx5 device";
            return Errno{EOPNOTSUPP};
        }
        if (config_.kick == nullptr) config_.kick = verbs().kick;
        receiver_ = std::make_unique<Mlx5Receiver>(*library, config_.kick, stamps());
        transmitter_ = std::make_unique<Mlx5Transmitter>(*library, config_.kick, config_.blueflame);
    } else {
        receiver_ = std::make_unique<VerbsReceiver>();
        transmitter_ = std::make_unique<VerbsTransmitter>();
    }
    const ibv_device_attr& limits = port_.attributes().orig_attr;
    const uint32_t most = uint32_t(std::min(limits.max_qp_wr, limits.max_cqe));
    config_.rx_requests = std::min(std::max(config_.rx_requests, 2 * config_.rx_batching), most);
    config_.tx_requests = std::min(std::max(config_.tx_requests, 2 * config_.tx_batching), most);
    config_.rx_batching =
        std::clamp(config_.rx_batching, 1u, std::max(1u, config_.rx_requests / 2));
    Status made = make_memory();
    if (made) made = bell_.open(port_);
    if (made) made = make_queues();
    if (made) {
        VerbsTransmitter::Limits tx;
        tx.requests = config_.tx_requests;
        tx.batching = config_.tx_batching;
        tx.max_inline = config_.max_inline;
        tx.max_pieces = most_pieces();
        tx.max_frame = config_.mtu + 14;
        tx.max_gso = caps_.max_gso_bytes ? caps_.max_gso_bytes + 14 : 0;
        tx.checksum = caps_.tx_checksum;
        receiver_->open(receive_.at, config_.rx_requests, room(), receive_.mr->lkey, *config_.pool,
                        uint32_t(config_.ifindex),
                        {config_.rx_batching, config_.poll_batch, config_.prefetch_bytes,
                         config_.prefetch_bytes_before_poll, config_.drop_without_packet});
        transmitter_->open(send_.at, kTxBytes, send_.mr->lkey, tx);
        made = use_queues();
    }
    if (made) {
        flows_.open(queues_.qp, port_.number(), config_.mac, config_.tcp_by_local,
                    config_.udp_by_local);
        lost_before_ = port_.out_of_buffer();
        made = start_qp();
    }
    if (made) return {};
    *why = made.error() == EPERM
               ? "a raw Ethernet queue pair needs CAP_NET_RAW: run as root, or setcap cap_net_raw"
               : "the RDMA device does not give a raw Ethernet queue pair";
    return made;
}

// Nothing is with the device afterwards. Received frames that wait are kept; what was to be sent and is not is lost, as on the
// wire.
Status VerbsRing::empty_qp() {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_ERR;
    if (const int error = verbs().modify_qp(queues_.qp, &a, IBV_QP_STATE)) return Errno{error};
    receiver_->gather();
    transmitter_->reclaim();
    a.qp_state = IBV_QPS_RESET;
    if (const int error = verbs().modify_qp(queues_.qp, &a, IBV_QP_STATE)) return Errno{error};
    receiver_->forget_requests();
    transmitter_->forget_requests();
    return {};
}

// A completion queue that has overrun is of no use any more, nor is the QP that it belongs to. No frame finds its way to the
// kernel meanwhile: the old QP keeps the rules, and loses what they take, until the new one has them.
Status VerbsRing::replace_queues() {
    const VerbsQueues old = std::exchange(queues_, {});
    Status made = make_queues();
    if (made) made = use_queues();
    if (made) made = start_qp();
    // Who sleeps on the channel is to hear from this queue, too.
    if (made && !receiver_->arm()) made = Errno{EIO};
    if (made) made = flows_.move(queues_.qp);
    if (made) {
        destroy(old);
        return {};
    }
    // What rules there are may be of either; close() does the rest.
    flows_.clear();
    destroy(std::exchange(queues_, old));
    (void)use_queues();
    return made;
}

// A request has completed in error, or the device says that something failed: the QP is emptied and started again.
void VerbsRing::recover() {
    if (lost()) return;
    port_.follow_fds();
    const bool replace = receiver_->queue_failed() || transmitter_->queue_failed();
    Status up = empty_qp();
    if (up) up = replace ? replace_queues() : start_qp();
    if (!up) lost_.store(true, std::memory_order_relaxed);
}

void VerbsRing::tend() {
    ibv_async_event event;
    bool failed = false;
    while (port_.next_event(&event)) switch (event.event_type) {
            case IBV_EVENT_CQ_ERR:  // where completions are seen in memory nothing else tells
                if (event.element.cq == queues_.receive) receiver_->queue_is_gone();
                if (event.element.cq == queues_.send) transmitter_->queue_is_gone();
                failed = true;
                break;
            case IBV_EVENT_DEVICE_FATAL:
            case IBV_EVENT_QP_FATAL:
            case IBV_EVENT_QP_REQ_ERR:
            case IBV_EVENT_QP_ACCESS_ERR:
                failed = true;
                break;
            default:  // the kernel tells of its interface what there is to know of a port
                break;
        }
    if (!failed) return;
    receiver_->gather();
    transmitter_->reclaim();  // which of the queues it is
    recover();
}

Status VerbsRing::use_queues() {
    const Status receives = receiver_->use(queues_);
    return receives ? transmitter_->use(queues_) : receives;
}

void VerbsRing::acknowledge() {
    const unsigned told = bell_.take();
    wakeups_ += told;
    receiver_->rung(told);
}

void VerbsRing::destroy(const VerbsQueues& queues) {
    if (queues.qp != nullptr) verbs().destroy_qp(queues.qp);
    if (queues.receive != nullptr) {
        bell_.take();  // all acknowledged: destroying waits for that
        verbs().destroy_cq(queues.receive);
    }
    if (queues.send != nullptr) verbs().destroy_cq(queues.send);
}

// A device that cannot wakes for each frame.
Status VerbsRing::moderate(Moderation to) {
    if (!can_moderate(port_) || to == moderation_) return {};
    const Status done = moderate_queue(port_, queues_.receive, to);
    if (done) moderation_ = to;
    return done;
}

// What the program asks for is from now on what the ring falls back to where it follows the traffic.
Status VerbsRing::moderate(uint32_t frames, uint32_t usec) {
    if (!can_moderate(port_)) return Errno{EOPNOTSUPP};
    port_.follow_fds();
    const Status done = moderate(Moderation{frames, usec});
    if (done) config_.moderation = {frames, usec};
    return done;
}

Status VerbsRing::register_memory(void* at, size_t bytes, uint32_t* key) {
    port_.follow_fds();
    return user_memory_.add(verbs(), pd_, at, bytes, key);
}

Status VerbsRing::deregister_memory(void* at, size_t bytes) {
    port_.follow_fds();
    return user_memory_.remove(verbs(), at, bytes);
}

Result<DeviceQueues*> VerbsRing::open_program_queues() {
    if (program_queues_ == nullptr) {
        auto opened = ProgramQueues::open(port_, config_.tx_requests);
        if (!opened) return Errno{opened.error()};
        program_queues_ = std::move(*opened);
    }
    return program_queues_.get();
}

void VerbsRing::adapt(Duration time) {
    port_.follow_fds();
    const uint64_t frames = receiver_->frames(), bytes = receiver_->bytes();
    (void)moderate(config_.adaptive.next(frames - frames_before_, bytes - bytes_before_, time,
                                         config_.moderation));
    frames_before_ = frames;
    bytes_before_ = bytes;
}

bool VerbsRing::arm() {
    disarm();
    if (receiver_->gather() != 0) return false;
    if (!receiver_->arm()) return lost();
    // It may have come before the queue was armed; and nothing would wake anybody for a QP that has stopped.
    return receiver_->gather() == 0 && (lost() || !receiver_->failed());
}

RingCounters VerbsRing::counters() const {
    RingCounters c;
    c.rx_frames = receiver_->frames();
    c.rx_bytes = receiver_->bytes();
    c.drops.add(DropReason::ring_damaged, receiver_->malformed());
    c.drops.add(DropReason::no_buffer, receiver_->dropped());
    c.drops.add(DropReason::ring_full, port_.out_of_buffer() - lost_before_);
    c.tx_frames = transmitter_->frames();
    c.tx_bytes = transmitter_->bytes();
    c.tx_refused = transmitter_->refused();
    c.wakeups = wakeups_;
    return c;
}

void VerbsRing::close() {
    program_queues_.reset();
    port_.follow_fds();
    flows_.clear();
    destroy(queues_);
    bell_.close();
    free_area(receive_, config_.receive_memory, receiver_ == nullptr || receiver_->all_back());
    free_area(send_, config_.send_memory, true);
    if (pd_ != nullptr) {
        user_memory_.clear(verbs());
        verbs().dealloc_pd(pd_);
    }
}

}  // namespace

Result<Ring*> open_verbs_ring(const VerbsRingConfig& config, std::string* why) {
    auto ring = std::make_unique<VerbsRing>(config);
    const Status opened = ring->open(why);
    if (!opened) return Errno{opened.error()};
    return ring.release();
}

}  // namespace vma
