// Templates: messages that are put together before they are sent.
#include <algorithm>
#include <cstring>
#include <new>

#include "extra/boundary.h"
#include "extra/functions.h"
#include "sock/using.h"

namespace vma::extra {
namespace {

using sock::SendTemplate;
using sock::SendTemplates;

constexpr int kFireFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
constexpr size_t kMostBytes = VMA_TEMPLATE_MAX_BYTES;
static_assert(kMostBytes == kUdpMaxPayload4 && VMA_TEMPLATE_MAX == SendTemplates::kMost);

SendTemplates* templates_of(sock::Socket& socket) {
    SendTemplates* there = socket.templates.load(std::memory_order_acquire);
    if (there != nullptr) return there;
    auto* made = new (std::nothrow) SendTemplates;
    if (made != nullptr && !socket.templates.compare_exchange_strong(there, made)) {
        delete made;
        return there;
    }
    return made;
}

// A template of a socket for the time of one call.
class Entered {
  public:
    Entered(sock::Socket* socket, uint64_t number) : number_(number) {
        if (socket == nullptr) {
            error_ = EINVAL;
            return;
        }
        all_ = socket->templates.load(std::memory_order_acquire);
        error_ = all_ ? all_->enter(number, &is_) : ENOENT;
    }
    ~Entered() {
        if (is_ != nullptr) all_->leave(number_);
    }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

    int error() const { return error_; }  // 0: it is there
    SendTemplate& operator*() const { return *is_; }
    void drop() {
        all_->drop(number_);
        is_ = nullptr;
    }
    // All of them or none.
    bool patch(const vma_patch_t* patches, size_t count) {
        for (size_t i = 0; i < count; i++)
            if (patches[i].offset > is_->size || patches[i].len > is_->size - patches[i].offset)
                return false;
        for (size_t i = 0; i < count; i++)
            (void)is_->datagram.patch(
                patches[i].offset, {static_cast<const uint8_t*>(patches[i].bytes), patches[i].len});
        return true;
    }

  private:
    const uint64_t number_;
    SendTemplates* all_ = nullptr;
    SendTemplate* is_ = nullptr;
    int error_ = 0;
};

}  // namespace

int template_alloc(int fd, const iovec* iov, int count, vma_template_t* out) {
    return ask_library([=] {
        const sock::Using object{fd};
        sock::Socket* const socket = object.socket();
        if (socket == nullptr || iov == nullptr || count < 1 || out == nullptr) return -EINVAL;
        size_t size = 0;
        for (int i = 0; i < count; i++) {
            if (iov[i].iov_len > kMostBytes - size) return -EMSGSIZE;
            size += iov[i].iov_len;
        }
        if (size == 0) return -EINVAL;
        SendTemplates* const all = templates_of(*socket);
        auto* const made = new (std::nothrow) SendTemplate;
        if (all == nullptr || made == nullptr ||
            !(made->bytes.reset(new (std::nothrow) uint8_t[size]), made->bytes)) {
            release(made);
            return -ENOMEM;
        }
        for (int i = 0; i < count; i++) {
            std::memcpy(made->bytes.get() + made->size, iov[i].iov_base, iov[i].iov_len);
            made->size += uint32_t(iov[i].iov_len);
        }
        made->datagram.set_text({made->bytes.get(), made->size});
        const uint64_t number = all->add(made);
        if (number == 0) {
            release(made);
            return -ENOBUFS;
        }
        *out = number;
        return 0;
    });
}

int template_update(int fd, vma_template_t number, const vma_patch_t* patches, int count) {
    return ask_library([=] {
        if (count < 0 || (patches == nullptr && count != 0)) return -EINVAL;
        const sock::Using object{fd};
        Entered it(object.socket(), number);
        if (it.error()) return -it.error();
        return it.patch(patches, size_t(count)) ? 0 : -EINVAL;
    });
}

int template_abort(int fd, vma_template_t number) {
    return ask_library([=] {
        const sock::Using object{fd};
        Entered it(object.socket(), number);
        if (it.error()) return -it.error();
        it.drop();
        return 0;
    });
}

ssize_t template_fire(int fd, vma_template_t number, const vma_patch_t* patches, int count,
                      int flags) {
    // What did not leave, and a reference: the socket may be closed, and this thread end, while the text is sent. No destructor,
    // for that reason.
    struct {
        SendTemplate* is = nullptr;
        size_t sent = 0;
    } left;
    const ssize_t fired = sock::answer<ssize_t>(
        [=, &left] {
            if (count < 0 || (patches == nullptr && count != 0) || (flags & ~kFireFlags))
                return sock::Outcome::error(EINVAL);
            const sock::Using object{fd};
            sock::Socket* const socket = object.socket();
            Entered it(socket, number);
            if (it.error()) return sock::Outcome::error(it.error());
            if (!it.patch(patches, size_t(count))) return sock::Outcome::error(EINVAL);
            const size_t sent = socket->fire(fd, *it);
            if (sent == (*it).size) return sock::Outcome::value(long(sent));
            (*it).refs.fetch_add(1, std::memory_order_relaxed);
            left = {&*it, sent};
            return sock::Outcome::kernel();
        },
        [] { return ssize_t(0); });
    if (left.is == nullptr) [[likely]]
        return fired;
    const ByteView rest = left.is->text().subspan(left.sent);
    ssize_t sent = ::send(fd, rest.data(), rest.size(), flags);
    const int error = errno;
    if (sent >= 0 || left.sent > 0) sent = ssize_t(left.sent) + std::max<ssize_t>(sent, 0);
    (void)ask_library([&] {
        release(left.is);
        return 0;
    });
    if (sent < 0) errno = error;
    return sent;
}

}  // namespace vma::extra
