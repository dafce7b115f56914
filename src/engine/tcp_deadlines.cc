// Deadlines: a binary heap over the records themselves. A deadline that moves later leaves the record where it is; it is
// looked at again when its old time comes.
#include <algorithm>

#include "engine/shard.h"
#include "engine/tcp_received.h"

namespace vma {

void TcpEngine::sift_up(uint32_t i) {
    TcpTarget* item = heap_[i];
    while (i > 0) {
        const uint32_t parent = (i - 1) / 2;
        if (heap_[parent]->heap_at <= item->heap_at) break;
        heap_[i] = heap_[parent];
        heap_[i]->heap_index = i;
        i = parent;
    }
    heap_[i] = item;
    item->heap_index = i;
}

void TcpEngine::sift_down(uint32_t i) {
    TcpTarget* item = heap_[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= heap_size_) break;
        if (child + 1 < heap_size_ && heap_[child + 1]->heap_at < heap_[child]->heap_at) child++;
        if (item->heap_at <= heap_[child]->heap_at) break;
        heap_[i] = heap_[child];
        heap_[i]->heap_index = i;
        i = child;
    }
    heap_[i] = item;
    item->heap_index = i;
}

void TcpEngine::queue_deadline(TcpTarget& target, Instant at) {
    if (at.is_never()) return;
    // The next tick; never earlier than asked for.
    if (tick_.ns > 0) at.ns = (at.ns + tick_.ns - 1) / tick_.ns * tick_.ns;
    if (target.heap_index != TcpTarget::kNotQueued) {
        if (target.heap_at <= at) return;
        target.heap_at = at;
        sift_up(target.heap_index);
    } else {
        if (heap_size_ == heap_room_) {
            const uint32_t room = heap_room_ ? heap_room_ * 2 : 256;
            auto** bigger = static_cast<TcpTarget**>(arena_.allocate(room * sizeof(TcpTarget*)));
            if (bigger == nullptr) return;  // the record is looked at again with its next segment
            std::copy(heap_, heap_ + heap_size_, bigger);
            if (heap_) arena_.free(heap_, heap_room_ * sizeof(TcpTarget*));
            heap_ = bigger;
            heap_room_ = room;
        }
        target.heap_at = at;
        heap_[heap_size_] = &target;
        sift_up(heap_size_++);
    }
    if (target.heap_index == 0) shard_.deadline_moved(at);
}

void TcpEngine::drop_deadline(TcpTarget& target) {
    if (target.heap_index == TcpTarget::kNotQueued) return;
    const uint32_t i = target.heap_index;
    target.heap_index = TcpTarget::kNotQueued;
    TcpTarget* last = heap_[--heap_size_];
    if (last == &target) return;
    heap_[i] = last;
    last->heap_index = i;
    sift_up(i);
    sift_down(last->heap_index);
}

void TcpEngine::run_deadlines(Instant now) {
    while (heap_size_ && heap_[0]->heap_at <= now) {
        TcpTarget& target = *heap_[0];
        drop_deadline(target);
        tcp::Actions actions;
        switch (target.kind) {
            case TcpTarget::Kind::connection: {
                auto& c = static_cast<TcpConnection&>(target);
                const Instant due = tcp::deadline(c.tcb);
                if (due <= now) {
                    tcp::deadline_reached(c.tcb, now, actions);
                    absorb(c, actions, now);
                }
                queue_output(c);
                break;
            }
            case TcpTarget::Kind::half_open: {
                auto& h = static_cast<TcpHalfOpen&>(target);
                if (tcp::deadline(h.record) > now) {
                    queue_deadline(h, tcp::deadline(h.record));
                    break;
                }
                const auto verdict =
                    tcp::deadline_reached(h.record, h.listener->config, now, actions);
                if (actions.has_reply) {
                    Received to;
                    to.local = h.record.local;
                    to.remote = h.record.remote;
                    to.peer_mac = h.peer_mac;
                    reply(actions.reply, to, h.listener->ttl, h.listener->tos);
                }
                if (verdict == tcp::HalfOpenVerdict::remove)
                    destroy(h);
                else
                    queue_deadline(h, tcp::deadline(h.record));
                break;
            }
            case TcpTarget::Kind::time_wait: {
                auto& w = static_cast<TcpRemains&>(target);
                if (tcp::deadline(w.record) > now)
                    queue_deadline(w, tcp::deadline(w.record));
                else
                    destroy(w);
                break;
            }
            case TcpTarget::Kind::listener:
                break;
        }
    }
    flush(now);
}

}  // namespace vma
