// What sockets of polling groups have to send.
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "extra/group.h"
#include "extra/group_calls.h"
#include "sock/slab.h"

namespace vma::extra::group {
namespace {

constinit sock::Slab<SendPiece> g_pieces;
constinit sock::Slab<InlineText> g_texts;

template <class T>
T* take(sock::Slab<T>& slab) {
    bool recycled;
    void* const memory = slab.take(&recycled);
    return memory ? new (memory) T : nullptr;
}

void give(SendPiece* piece) {
    if (piece->text != nullptr) g_texts.give(piece->text);
    g_pieces.give(piece);
}

// Pieces on their way into a queue.
struct Chain {
    SendPiece* first = nullptr;
    SendPiece* last = nullptr;
    SendPiece* add() {
        SendPiece* const piece = take(g_pieces);
        if (piece == nullptr) return nullptr;
        *piece = {};
        (last ? last->next : first) = piece;
        return last = piece;
    }
    void drop() {
        while (SendPiece* const piece = first) {
            first = piece->next;
            give(piece);
        }
    }
};

// Copies go into as few pieces as they fit in, whatever the vectors.
bool copy_into(Chain& chain, const iovec* iov, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        const auto* from = static_cast<const unsigned char*>(iov[i].iov_base);
        for (size_t left = iov[i].iov_len; left > 0;) {
            SendPiece* piece = chain.last;
            if (piece == nullptr || piece->left == InlineText::kRoom) {
                piece = chain.add();
                if (piece == nullptr || (piece->text = take(g_texts)) == nullptr) return false;
                piece->at = piece->text->text;
            }
            const size_t n = std::min(left, InlineText::kRoom - piece->left);
            std::memcpy(piece->text->text + piece->left, from, n);
            piece->left += n;
            from += n;
            left -= n;
        }
    }
    return true;
}

bool refer_to(Chain& chain, const iovec* iov, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        if (iov[i].iov_len == 0) continue;
        SendPiece* const piece = chain.add();
        if (piece == nullptr) return false;
        piece->at = static_cast<const unsigned char*>(iov[i].iov_base);
        piece->left = iov[i].iov_len;
    }
    return true;
}

// An error of a send that may succeed later.
bool passes(int error) {
    return error == EAGAIN || error == EINTR || error == ENOMEM || error == ENOBUFS;
}

}  // namespace

bool SendQueue::add(const iovec* iov, unsigned count, bool copy, uintptr_t userdata) {
    Chain chain;
    if (!(copy ? copy_into(chain, iov, count) : refer_to(chain, iov, count))) {
        chain.drop();
        return false;
    }
    if (chain.first == nullptr) return true;  // of no byte
    if (!copy) {
        chain.last->userdata = userdata;
        wanted_ += userdata != 0;
    }
    for (SendPiece* piece = chain.first; piece; piece = piece->next)
        piece->end = queued_ += piece->left;
    (last_ ? last_->next : first_) = chain.first;
    last_ = chain.last;
    if (unsent_ == nullptr) unsent_ = chain.first;
    return true;
}

unsigned SendQueue::next(iovec (&iov)[kStep], bool* more) const {
    unsigned n = 0;
    const SendPiece* piece = unsent_;
    for (; piece && n < kStep; piece = piece->next)
        iov[n++] = {const_cast<unsigned char*>(piece->at), piece->left};
    *more = piece != nullptr;
    return n;
}

void SendQueue::wrote(size_t bytes) {
    written_ += bytes;
    while (bytes > 0) {
        const size_t n = std::min(bytes, unsent_->left);
        unsent_->at += n;
        unsent_->left -= n;
        bytes -= n;
        if (unsent_->left == 0) unsent_ = unsent_->next;
    }
    // Nobody wants to know when the peer has it.
    while (wanted_ == 0 && first_ != unsent_) drop_first();
}

void SendQueue::drop_first() {
    SendPiece* const piece = first_;
    first_ = piece->next;
    if (unsent_ == piece) unsent_ = first_;
    if (first_ == nullptr) last_ = nullptr;
    give(piece);
}

bool SendQueue::take_done(uint64_t place, uintptr_t* userdata) {
    while (first_ && first_->end <= place) {
        *userdata = first_->userdata;
        drop_first();
        if (*userdata == 0) continue;
        wanted_--;
        return true;
    }
    return false;
}

bool Group::send(GroupSocket& socket, const iovec* iov, unsigned count, bool copy, bool at_once,
                 uintptr_t userdata) {
    const Guard guard(*this);
    if (!socket.queue.add(iov, count, copy, userdata)) {
        errno = ENOMEM;
        return false;
    }
    if (at_once) {
        write_out(socket);
    } else if (!socket.dirty_hook.linked()) {
        dirty_.push_back(socket);
    }
    return true;
}

void Group::flush(GroupSocket& socket) {
    const Guard guard(*this);
    write_out(socket);
}

void Group::flush() {
    const Guard guard(*this);
    while (GroupSocket* const socket = dirty_.front()) write_out(*socket);
}

// As much as there is room for; poll() goes on with the rest.
void Group::write_out(GroupSocket& socket) {
    const int before = errno;
    socket.dirty_hook.unlink();
    socket.flushing = true;
    while (!socket.queue.all_written()) {
        iovec iov[SendQueue::kStep];
        bool more;
        const unsigned count = socket.queue.next(iov, &more);
        size_t bytes = 0;
        for (unsigned i = 0; i < count; i++) bytes += iov[i].iov_len;
        const ssize_t sent = calls::send(socket.fd, iov, count, more);
        if (sent < 0) {
            // The socket tells of its end once: whoever looks there next would find a stream that has ended in order.
            if (!passes(errno)) socket.failure.store(errno, std::memory_order_relaxed);
            break;
        }
        socket.queue.wrote(size_t(sent));
        if (size_t(sent) < bytes) break;
    }
    if (socket.queue.all_written()) socket.flushing = false;
    if (!socket.queue.empty() && !socket.sending_hook.linked()) sending_.push_back(socket);
    errno = before;
}

}  // namespace vma::extra::group
