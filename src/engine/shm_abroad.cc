#include "engine/shm_abroad.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/close_aside.h"
#include "base/descriptor_message.h"
#include "base/high_fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/internal_thread.h"

namespace vma {
namespace {

std::atomic<ShmIntroducer*> g_introducer{nullptr};

}  // namespace

void ShmAbroad::set_introducer(ShmIntroducer* introducer) {
    g_introducer.store(introducer, std::memory_order_release);
}

void ShmAbroad::publish(const Endpoint& local) {
    {
        std::lock_guard guard(lock_);
        to_publish_.push_back(local);
    }
    InternalThread::poke();
}

bool ShmAbroad::join(Instant now) {
    if (link_.valid()) return true;
    ShmIntroducer* const by = g_introducer.load(std::memory_order_acquire);
    if (by == nullptr || now < next_join_) return false;
    next_join_ = now + kJoinAgain;
    told_ = 0;
    const auto link = by->join();
    if (!link || !link_.adopt(*link)) return false;
    links_++;
    return true;
}

void ShmAbroad::lost() {
    vma_log(debug, "engine", "nobody introduces neighbours of other network namespaces now");
    link_.reset();
}

void ShmAbroad::turn(Instant now) {
    {
        std::lock_guard guard(lock_);
        for (const Endpoint& e : to_publish_) {
            if (published_.size() < kMostPublished &&
                std::find(published_.begin(), published_.end(), e) == published_.end())
                published_.push_back(e);
        }
        to_publish_.clear();
    }
    if (published_.empty() || (link_.valid() && told_ == published_.size()) || !join(now)) return;
    ShmIntroducer* const by = g_introducer.load(std::memory_order_acquire);
    // What is refused once is refused until the next link.
    while (told_ < published_.size()) (void)by->publish(published_[told_++]);
}

int ShmAbroad::read_one(shm::LinkMessage& m, int& passed) {
    passed = -1;
    iovec part{&m, sizeof m};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))];
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t n = sys::recvmsg(link_.fd(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return n == -EINTR ? EAGAIN : int(-n);
    for_each_passed(header, [&](int fd) {
        if (passed >= 0) close_aside(passed);
        passed = raised(fd);
    });
    if (n == sizeof m && !(header.msg_flags & MSG_TRUNC) && m.magic == shm::LinkMessage::kMagic &&
        m.version == 1 && (m.word == shm::LinkWord::met) == (passed >= 0))
        return 0;
    if (passed >= 0) close_aside(std::exchange(passed, -1));
    return n == 0 ? ECONNRESET : EPROTO;
}

Status ShmAbroad::ask(shm::LinkMessage question, int twin) {
    question.serial = ++serial_;
    const iovec part{&question, sizeof question};
    if (!send_with_fds(link_.fd(), {&part, 1}, {&twin, twin >= 0 ? size_t(1) : 0})) {
        lost();
        return Errno{ENOLINK};
    }
    const Instant deadline = monotonic_now() + kAnswer;
    for (;;) {
        shm::LinkMessage m;
        int passed;
        const int error = read_one(m, passed);
        if (error == 0 && m.word == shm::LinkWord::met) {
            met_.push_back({m.introduction, passed, m.endpoint()});
            continue;
        }
        if (error == 0 && m.word == shm::LinkWord::answer && m.serial == question.serial)
            return m.error == 0 ? Status() : Status(Errno{m.error});
        const Duration left = deadline - monotonic_now();
        if (error != EAGAIN || left.ns <= 0) {
            lost();
            return Errno{ENOLINK};
        }
        pollfd look{link_.fd(), POLLIN, 0};
        const timespec time{left.ns / 1'000'000'000, left.ns % 1'000'000'000};
        sys::ppoll(&look, 1, &time);
    }
}

Status ShmAbroad::seek(const Endpoint& remote, Instant now) {
    if (!join(now)) return Errno{ENOLINK};
    shm::LinkMessage m;
    m.word = shm::LinkWord::seek;
    m.address = remote.addr.v4_host();
    m.port = remote.port;
    return ask(m, -1);
}

Status ShmAbroad::about(shm::LinkWord word, uint64_t introduction, int twin) {
    if (!link_.valid()) return Errno{ENOLINK};
    shm::LinkMessage m;
    m.word = word;
    m.introduction = introduction;
    return ask(m, twin);
}
Status ShmAbroad::show(uint64_t introduction, int twin) {
    return about(shm::LinkWord::show, introduction, twin);
}
Status ShmAbroad::prove(uint64_t introduction, int twin) {
    return about(shm::LinkWord::prove, introduction, twin);
}

void ShmAbroad::forget(uint64_t introduction) {
    if (!link_.valid()) return;
    shm::LinkMessage m;
    m.word = shm::LinkWord::forget;
    m.introduction = introduction;
    const iovec part{&m, sizeof m};
    if (!send_with_fds(link_.fd(), {&part, 1}, {})) lost();
}

bool ShmAbroad::next(Met& out) {
    while (met_.empty()) {
        if (!link_.valid()) return false;
        shm::LinkMessage m;
        int passed;
        const int error = read_one(m, passed);
        if (error == EAGAIN) return false;
        if (error != 0) {
            lost();
            return false;
        }
        if (m.word == shm::LinkWord::met) met_.push_back({m.introduction, passed, m.endpoint()});
    }
    out = met_.front();
    met_.pop_front();
    return true;
}

}  // namespace vma
