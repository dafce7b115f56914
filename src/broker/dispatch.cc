#include "broker/dispatch.h"

#include <errno.h>
#include <netinet/in.h>

namespace vma::broker {
namespace {

// Ports that only a privileged process may bind, as ip(7) has it by default.
constexpr uint16_t kFirstFreePort = 1024;

// Is a socket bound to `own` the owner of `local`?
bool covers(const Endpoint& own, const Endpoint& local) {
    return own.port != 0 && own.port == local.port && (own.addr.is_any() || own.addr == local.addr);
}

}  // namespace

bool Dispatcher::owns_port(const Endpoint& local) const {
    if (trusted_) return true;
    for (unsigned i = 0; i < proven_count_; i++)
        if (covers(proven_[i], local)) return true;
    return false;
}

Status Dispatcher::prove(int fd) {
    const SocketFacts facts = operations_.inspect(fd);
    // A connected socket shows one tuple, not a port.
    if (!(facts.tcp || facts.udp) || !same_namespace(facts) || facts.local.port == 0 ||
        (facts.connected && !facts.listening)) {
        counters_.refused++;
        return Errno{EACCES};
    }
    for (unsigned i = 0; i < proven_count_; i++)
        if (proven_[i] == facts.local) return {};
    // The oldest is forgotten: a program with more listeners than this keeps the rest on the kernel after a crash.
    proven_[next_proven_] = facts.local;
    next_proven_ = (next_proven_ + 1) % kMostProven;
    if (proven_count_ < kMostProven) proven_count_++;
    return {};
}

Status Dispatcher::may_restore(int twin, const tcp::Snapshot& s) {
    const SocketFacts facts = operations_.inspect(twin);
    if (!facts.tcp || facts.connected || facts.listening) return Errno{EINVAL};
    if (!same_namespace(facts)) return Errno{EXDEV};
    if (facts.local.port != 0)
        return covers(facts.local, s.local) ? Status() : Status(Errno{EACCES});
    if (owns_port(s.local)) return {};
    if (s.local.port < kFirstFreePort || !operations_.bind(twin, s.local)) return Errno{EACCES};
    return {};
}

// A connection that the client has in its hands; `local`: what its own end must be.
Status Dispatcher::may_touch(int twin, const Endpoint* local) {
    const SocketFacts facts = operations_.inspect(twin);
    if (!facts.tcp || !facts.connected || facts.listening) return Errno{EINVAL};
    if (!same_namespace(facts)) return Errno{EXDEV};
    return local == nullptr || facts.local == *local ? Status() : Status(Errno{EACCES});
}

Status Dispatcher::restore_or_finish(Op op, const Repair& body, Fds& fds, Answer& answer) {
    const auto s = from_wire(body.image.snapshot);
    if (!s) return Errno{EINVAL};
    const Status may = op == Op::restore ? may_restore(fds[0], *s) : may_touch(fds[0], &s->local);
    if (!may) {
        counters_.refused++;
        return may;
    }
    RepairQueues queues;
    const uint32_t total = body.unacked + body.unsent + body.unread;
    if (total) {
        const auto bytes = operations_.read_queues(fds[1], total);
        if (!bytes) return Errno{bytes.error()};
        if (bytes->size() != total) return Errno{EINVAL};
        queues.unacked = bytes->first(body.unacked);
        queues.unsent = bytes->subspan(body.unacked, body.unsent);
        queues.unread = bytes->subspan(body.unacked + body.unsent);
    }
    if (op == Op::finish) return operations_.finish(fds[0], *s, queues, body.image.options);
    const Status done = operations_.restore(fds[0], *s, queues, answer.reply.image.options);
    (done ? counters_.restored : counters_.failed)++;
    return done;
}

Status Dispatcher::repair(Op op, Repair& body, Fds& fds, Answer& answer) {
    // What a client says that its options were must not give it what it could not set itself.
    if (!trusted_) body.image.options.known &= ~RepairOptions::kPrivileged;
    if (op == Op::restore || op == Op::finish) return restore_or_finish(op, body, fds, answer);
    const Status may = may_touch(fds[0], nullptr);
    if (!may) {
        counters_.refused++;
        return may;
    }
    if (op == Op::cancel) {
        operations_.cancel(fds[0], body.image.options);
        return {};
    }
    if (op == Op::checkpoint) {
        RepairImage image;
        const Status done = operations_.checkpoint(fds[0], image, answer.fds[0]);
        answer.fd_count = answer.fds[0] >= 0;
        if (done) answer.reply.image = to_wire(image);
        return done;
    }
    const auto image = from_wire(body.image);
    if (!image) return Errno{EINVAL};
    if (op == Op::release) return operations_.release(fds[0], *image);
    operations_.resume(fds[0], *image);
    return {};
}

bool Dispatcher::has_ring(uint32_t slot) const {
    for (unsigned i = 0; i < ring_count_; i++)
        if (rings_[i] == slot) return true;
    return false;
}

Status Dispatcher::open_ring(const OpenRing& request, Answer& answer) {
    if (ring_count_ == kMostRings || request.bytes > kMostLentBytes - lent_bytes_) {
        counters_.refused++;
        return Errno{ENOSPC};
    }
    OpenedRing opened;
    if (const Status done = operations_.open_ring(request, opened); !done) return done;
    lent_bytes_ += request.bytes;
    rings_[ring_count_++] = opened.slot;
    counters_.rings++;
    answer.fd_count = kRingFds;
    for (unsigned i = 0; i < kRingFds; i++) answer.fds[i] = opened.fds[i];
    answer.reply.slot = opened.slot;
    answer.reply.token = opened.token;
    return {};
}

Status Dispatcher::show_ring(const ShowRing& ring, int doorbell) {
    if (has_ring(ring.slot)) return {};
    const Status shown =
        ring_count_ == kMostRings ? Status(Errno{ENOSPC}) : operations_.show_ring(ring, doorbell);
    if (!shown) {
        counters_.refused++;
        return shown;
    }
    rings_[ring_count_++] = ring.slot;
    counters_.rings++;
    return {};
}

// Does the socket show that the flow is the client's?
Status Dispatcher::may_steer(int twin, const Steer& flow) {
    const SocketFacts facts = operations_.inspect(twin);
    const Endpoint local = from_wire(flow.local), remote = from_wire(flow.remote);
    const bool tcp = flow.protocol == IPPROTO_TCP;
    if (!has_ring(flow.slot)) return Errno{EACCES};
    if (tcp ? !facts.tcp : !facts.udp) return Errno{EINVAL};
    if (!same_namespace(facts)) return Errno{EXDEV};
    const bool one_tuple = remote.port != 0;
    if (facts.local.port == 0) {
        if (!tcp || !one_tuple || facts.connected || !owns_port(local)) return Errno{EACCES};
    } else {
        if (!covers(facts.local, local)) return Errno{EACCES};
        if (facts.connected && !facts.listening && facts.remote != remote) return Errno{EACCES};
        if (tcp && !one_tuple && !facts.listening) return Errno{EACCES};
    }
    // A socket can be bound to an address of another host, and frames for that may pass through this one.
    return operations_.has_address(local.addr) ? Status() : Status(Errno{EADDRNOTAVAIL});
}

Status Dispatcher::steer(const Steer& flow, int twin) {
    const Status may = may_steer(twin, flow);
    if (!may) {
        counters_.refused++;
        return may;
    }
    const Status done = operations_.steer(flow);
    (done ? counters_.steered : counters_.failed)++;
    return done;
}

Status Dispatcher::publish(const Endpoint& local) {
    if (operations_.has_address(local.addr)) return operations_.publish(local);
    counters_.refused++;
    return Errno{EADDRNOTAVAIL};
}

bool Dispatcher::message(ByteView packet, Fds& fds, Answer& answer) {
    counters_.messages++;
    Body body;
    const auto head = decode(packet, fds.count(), body);
    if (!head || head->op == Op::reply || (head->op != Op::hello && !greeted_) ||
        (head->op == Op::hello && greeted_)) {
        counters_.malformed++;
        return false;
    }
    answer.send = answered(head->op);
    answer.serial = head->serial;
    Status done;
    switch (head->op) {
        case Op::hello:
            // Another build cannot be served, another namespace must not.
            greeted_ = body.hello.layout == layout_ &&
                       body.hello.netns_cookie == operations_.netns_cookie();
            return greeted_;
        case Op::restore:
        case Op::cancel:
        case Op::finish:
        case Op::checkpoint:
        case Op::resume:
        case Op::release:
            done = repair(head->op, body.repair, fds, answer);
            break;
        case Op::watch:
            // Its owner's death would give the flows of that ring away.
            done = trusted_ || has_ring(body.watch.slot) ? operations_.watch(body.watch, fds)
                                                         : Status(Errno{EACCES});
            if (done.error() == EACCES) counters_.refused++;
            break;
        case Op::open_ring:
            done = open_ring(body.open_ring, answer);
            break;
        case Op::show_ring:
            done = show_ring(body.show_ring, fds[0]);
            break;
        case Op::steer:
            done = steer(body.steer, fds[0]);
            break;
        case Op::unsteer:
            if (has_ring(body.steer.slot))
                operations_.unsteer(body.steer);
            else
                counters_.refused++;
            break;
        case Op::share:
            done = operations_.share(fds);
            if (!done) counters_.refused++;
            break;
        case Op::publish:
            done = publish(from_wire(body.publish.local));
            break;
        case Op::hold:
            done = operations_.hold(body.held, fds);
            break;
        case Op::drop:
            operations_.drop(body.held);
            break;
        case Op::prove:
            done = prove(fds[0]);
            break;
        case Op::drop_privileges:
            trusted_ = false;
            break;
        case Op::leaving:
        case Op::staying:
            operations_.leaving(head->op == Op::leaving);
            break;
        default:
            break;
    }
    if (!done && !answer.send) counters_.failed++;
    answer.reply.error = done.error();
    return true;
}

}  // namespace vma::broker
