#include "stack/tcp/send_buffer.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/order.h"
#include "stack/tcp/messages.h"
#include "stack/tcp/sack.h"

namespace vma::tcp {

SendChunk* TcpMemory::take_chunk(size_t want, bool first) {
    bool large = want > kSmallChunk - sizeof(SendChunk);
    if (refuses(large ? kLargeChunk : kSmallChunk)) {
        ++refused_;
        if (!first) return nullptr;
        large = false;
    }
    const uint32_t block = large ? kLargeChunk : kSmallChunk;
    void* raw = arena_->allocate(block);
    if (raw == nullptr) return nullptr;
    ++chunks_out_;
    chunk_bytes_ += block;
    charge(block);
    return new (raw) SendChunk{nullptr, 0, 0, uint32_t(block - sizeof(SendChunk)), large};
}

void TcpMemory::give_chunk(SendChunk* chunk) {
    const uint32_t block = chunk->large ? kLargeChunk : kSmallChunk;
    chunk_bytes_ -= block;
    charge(-int64_t(block));
    arena_->free(chunk, block);
    --chunks_out_;
}

TxRange* TcpMemory::take_range() {
    void* raw = arena_->allocate_fixed<sizeof(TxRange)>();
    if (raw == nullptr) return nullptr;
    ++ranges_out_;
    return new (raw) TxRange;
}

void TcpMemory::give_range(TxRange* range) {
    arena_->free_fixed<sizeof(TxRange)>(range);
    --ranges_out_;
}

MessageMarks* TcpMemory::take_marks() { return arena_->make<MessageMarks>(); }
void TcpMemory::give_marks(MessageMarks* marks) { arena_->destroy(marks); }

size_t SendBuffer::append(TcpMemory& memory, const iovec* iov, size_t count) {
    size_t done = 0, left = room();
    for (size_t i = 0; i < count && left > 0; ++i) {
        const size_t n = std::min(iov[i].iov_len, left);
        const uint32_t before = bytes;
        const bool all = append_all(memory, iov[i].iov_base, n);
        done += bytes - before;
        left -= bytes - before;
        if (!all || n < iov[i].iov_len) break;
    }
    return done;
}

bool SendBuffer::append_all(TcpMemory& memory, const void* data, size_t n) {
    auto* from = static_cast<const uint8_t*>(data);
    while (n > 0) {
        if (tail == nullptr || tail->end == tail->room) {
            // Many small writes in a row get large chunks too: a super-frame has few slices.
            SendChunk* chunk = memory.take_chunk(std::max<size_t>(n, bytes), head == nullptr);
            if (chunk == nullptr) return false;
            (tail ? tail->next : head) = chunk;
            tail = chunk;
        }
        const uint32_t k = uint32_t(std::min<size_t>(n, tail->room - tail->end));
        std::memcpy(tail->data() + tail->end, from, k);
        order_stores();
        tail->end += k;
        order_stores();
        bytes += k;
        from += k;
        n -= k;
    }
    return true;
}

void SendBuffer::acknowledge(TcpMemory& memory, Seq una) {
    int32_t advance = una - start;
    while (advance > 0 && head != nullptr) {
        const uint32_t held = head->end - head->begin;
        const uint32_t k = std::min(uint32_t(advance), held);
        head->begin += k;
        order_stores();
        start += k;
        order_stores();
        bytes -= k;
        order_stores();
        advance -= int32_t(k);
        if (k < held) break;
        SendChunk* gone = head;
        for (Hint& h : hints)
            if (h.chunk == gone) h.chunk = nullptr;
        head = gone->next;
        if (head == nullptr) tail = nullptr;
        memory.give_chunk(gone);
    }
    // A hint's first byte is counted from its chunk's current begin.
    for (Hint& h : hints)
        if (h.chunk == head) h.seq = start;
}

uint32_t SendBuffer::slices(Seq from, uint32_t n, iovec* out, unsigned max, uint16_t* count) {
    // The newest bytes, as of a short message that leaves at once.
    if (tail != nullptr && from + n == end() && n > 0 && n <= tail->end - tail->begin && max > 0) {
        out[0] = {tail->data() + tail->end - n, n};
        *count = 1;
        return n;
    }
    SendChunk* chunk = head;
    Seq at = start;
    Hint* hint = &hints[0];
    for (Hint& h : hints) {
        if (h.chunk == nullptr || h.seq > from) continue;
        hint = &h;
        chunk = h.chunk;
        at = h.seq;
    }
    while (chunk != nullptr && at + (chunk->end - chunk->begin) <= from) {
        at += chunk->end - chunk->begin;
        chunk = chunk->next;
    }
    uint32_t covered = 0;
    uint16_t used = 0;
    if (chunk != nullptr) {
        // Ahead of both: the second follows. The first is new text's until something is repeated behind it.
        if (hints[1].chunk == nullptr || hints[1].seq <= at) hint = &hints[1];
        *hint = {chunk, at};
    }
    uint32_t skip = uint32_t(from - at);
    while (chunk != nullptr && covered < n && used < max) {
        const uint32_t k = std::min(n - covered, chunk->end - chunk->begin - skip);
        if (k > 0) {
            out[used++] = {chunk->data() + chunk->begin + skip, k};
            covered += k;
        }
        skip = 0;
        chunk = chunk->next;
    }
    *count = used;
    return covered;
}

size_t SendBuffer::copy_out(Seq from, void* out, size_t n) const {
    auto* to = static_cast<uint8_t*>(out);
    size_t done = 0;
    Seq at = start;
    for (const SendChunk* c = head; c != nullptr && done < n; c = c->next) {
        const uint32_t held = c->end - c->begin;
        if (from < at + held) {
            const uint32_t skip = uint32_t(from - at);
            const size_t k = std::min<size_t>(n - done, held - skip);
            std::memcpy(to + done, c->data() + c->begin + skip, k);
            done += k;
            from += uint32_t(k);
        }
        at += held;
    }
    return done;
}

void SendBuffer::clear(TcpMemory& memory) {
    while (head != nullptr) {
        SendChunk* gone = head;
        head = gone->next;
        memory.give_chunk(gone);
    }
    tail = nullptr;
    hints[0] = hints[1] = {};
    order_stores();
    start += bytes;
    order_stores();
    bytes = 0;
}

}  // namespace vma::tcp
