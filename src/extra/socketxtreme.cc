// SocketXtreme in the program's terms.
#include "sock/xtreme.h"

#include <atomic>
#include <cstddef>

#include "base/log.h"
#include "extra/boundary.h"
#include "extra/functions.h"
#include "sock/socket.h"

namespace vma::extra {
namespace {

static_assert(sizeof(PacketPiece) == sizeof(vma_buff_t) &&
              offsetof(PacketPiece, next) == offsetof(vma_buff_t, next) &&
              offsetof(PacketPiece, payload) == offsetof(vma_buff_t, payload) &&
              offsetof(PacketPiece, len) == offsetof(vma_buff_t, len));

PacketPiece* piece_of(vma_buff_t* buff) { return reinterpret_cast<PacketPiece*>(buff); }

// The program's array.
class Array final : public sock::Completions {
  public:
    Array(vma_completion_t* at, unsigned count) : at_(at), count_(count) {}
    unsigned used() const { return used_; }
    bool room() const override { return used_ < count_; }
    void put(const sock::Socket& socket, const sock::Completion& done) override {
        vma_completion_t& c = at_[used_++];
        c = {};
        c.events = done.events;
        c.user_data = socket.has_user_data.load(std::memory_order_acquire)
                          ? socket.user_data.load(std::memory_order_relaxed)
                          : uint64_t(socket.fd());
        if (done.pieces != nullptr) {
            c.events |= VMA_SOCKETXTREME_PACKET;
            c.packet.num_bufs = done.pieces_count;
            c.packet.total_len = uint16_t(done.bytes);
            c.packet.buff_lst = reinterpret_cast<vma_buff_t*>(done.pieces);
            c.packet.hw_timestamp = to_timespec(done.hw_time_ns);
        }
        if (done.accepted >= 0) {
            c.events |= VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED;
            c.user_data = uint64_t(done.accepted);
            c.listen_fd = socket.fd();
        }
        if (done.peer.port != 0) c.src = done.peer.to_sockaddr_in();
    }

  private:
    vma_completion_t* const at_;
    const unsigned count_;
    unsigned used_ = 0;
};

void tell_off() {
    static std::atomic<bool> told{false};
    if (told.exchange(true)) return;
    vma_log(warning, "extra",
            "socketxtreme_* were called and do nothing: VMA_SOCKETXTREME=1 turns them on");
}

// As ask_library(), where the mode is on.
template <class Ask>
int ask_in_mode(const Ask& ask) {
    return ask_library([&] {
        if (sock::Xtreme::on()) return ask();
        tell_off();
        return -EOPNOTSUPP;
    });
}

}  // namespace

int socketxtreme_poll(int fd, vma_completion_t* completions, unsigned n, int) {
    return ask_in_mode([=] {
        if (completions == nullptr || n == 0) return -EINVAL;
        Array array(completions, n);
        return sock::Xtreme::poll(fd, array) ? int(array.used()) : -EBADFD;
    });
}

int socketxtreme_free_vma_packets(vma_packet_desc_t* packets, int num) {
    return ask_in_mode([=] {
        if (packets == nullptr) return -EINVAL;
        for (int i = 0; i < num; i++)
            for (const PacketPiece *piece = piece_of(packets[i].buff_lst), *next; piece;
                 piece = next)
                if (sock::give_piece_back(piece, &next) < 0) return -ENOENT;
        return 0;
    });
}

int socketxtreme_ref_vma_buff(vma_buff_t* buff) {
    return ask_in_mode([=] { return buff ? sock::hold_piece(piece_of(buff)) : -EINVAL; });
}

int socketxtreme_free_vma_buff(vma_buff_t* buff) {
    return ask_in_mode([=] { return buff ? sock::give_piece_back(piece_of(buff)) : -EINVAL; });
}

}  // namespace vma::extra
