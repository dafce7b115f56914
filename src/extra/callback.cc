// Receive callbacks in the program's terms.
#include "extra/boundary.h"
#include "extra/functions.h"
#include "extra/layouts.h"
#include "sock/using.h"

namespace vma::extra {
namespace {

template <size_t info_size>
sock::ScreenAnswer show(const sock::ShownPacket& packet, void* callback, void* context) {
    iovec text = packet.text;
    sockaddr_in source = packet.source.to_sockaddr_in();
    sockaddr_in destination = packet.destination.to_sockaddr_in();
    vma_info_t info{};
    info.struct_sz = info_size;
    info.packet_id = packet.id;
    info.src = &source;
    info.dst = &destination;
    info.payload_sz = text.iov_len;
    info.socket_ready_queue_pkt_count = packet.queued_packets;
    info.socket_ready_queue_byte_count = packet.queued_bytes;
    info.hw_timestamp = to_timespec(packet.hw_time_ns);
    info.sw_timestamp = to_timespec(packet.realtime_ns);
    const auto ask = reinterpret_cast<vma_recv_callback_t>(callback);
    switch (int(ask(packet.fd, 1, &text, &info, context))) {
        case VMA_PACKET_DROP:
            return sock::ScreenAnswer::drop;
        case VMA_PACKET_HOLD:
            return sock::ScreenAnswer::keep;
        default:
            return sock::ScreenAnswer::queue;
    }
}

int set(int s, vma_recv_callback_t callback, void* context, sock::Screen::Show show_it) {
    return ask_library([=] {
        const sock::Using object{s};
        sock::Socket* const socket = object.socket();
        if (socket == nullptr) return -EINVAL;
        socket->set_screen(
            {callback ? show_it : nullptr, reinterpret_cast<void*>(callback), context, s});
        return 0;
    });
}

}  // namespace

int register_recv_callback(int s, vma_recv_callback_t callback, void* context) {
    return set(s, callback, context, show<sizeof(vma_info_t)>);
}
int register_recv_callback_606(int s, vma_recv_callback_t callback, void* context) {
    return set(s, callback, context, show<kInfo606>);
}

}  // namespace vma::extra
