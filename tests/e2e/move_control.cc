// Moves connections on request, and makes steps of a move fail: what libvma_move.so has beside libvma.so.
#include <errno.h>
#include <sys/ioctl.h>
#include <time.h>

#include "base/deferred_signal.h"
#include "base/sys.h"
#include "sock/fd_table.h"
#include "sock/mover.h"
#include "sock/tcp_socket.h"

namespace vma::sock {
namespace {

// Which step of the next moves does not work. Each stands for what the kernel or a broker may answer there.
// kOverheard: only if the kernel gets segments of the peer, who goes on sending, before the socket is ready for them.
enum Fail : int { kNothing, kRestore, kCheckpoint, kImport, kRelease, kOverheard };

int unread(int fd) {
    int bytes = 0;
    sys::raw(SYS_ioctl, fd, FIONREAD, sys::ptr(&bytes));
    return bytes;
}

// Long enough for the peer to repeat what went elsewhere.
bool more_comes(int fd) {
    const int before = unread(fd);
    for (int i = 0; i < 50; i++) {
        const timespec slice{0, 10'000'000};
        sys::ppoll(nullptr, 0, &slice);
        if (unread(fd) != before) return true;
    }
    return false;
}

class FailingMover final : public Mover {
  public:
    explicit FailingMover(Fail fail) : fail_(fail) {}
    Status restore(int fd, const tcp::Snapshot& s, const RepairQueues& q,
                   RepairOptions& saved) override {
        const Status done = own_mover().restore(fd, s, q, saved);
        if (fail_ != kRestore && !(fail_ == kOverheard && done && more_comes(fd))) return done;
        // All of it, and then not.
        if (done) own_mover().cancel(fd, saved);
        return Errno{EIO};
    }
    void cancel(int fd, const RepairOptions& saved) override { own_mover().cancel(fd, saved); }
    Status finish(int fd, const tcp::Snapshot& s, const RepairQueues& q,
                  const RepairOptions& saved) override {
        return own_mover().finish(fd, s, q, saved);
    }
    Status inject(ByteView packet) override { return own_mover().inject(packet); }
    Status checkpoint(int fd, RepairImage& image, ByteSpan room) override {
        const Status read = own_mover().checkpoint(fd, image, room);
        if (!read) return read;
        if (fail_ == kCheckpoint) {
            own_mover().resume(fd, image);
            return Errno{EAGAIN};
        }
        // A snapshot that the stack refuses: the step after this one fails.
        if (fail_ == kImport) image.snapshot.snd_wscale = 15;
        return read;
    }
    void resume(int fd, const RepairImage& image) override { own_mover().resume(fd, image); }
    Status release(int fd, const RepairImage& image) override {
        if (fail_ == kRelease) return Errno{EAGAIN};
        return own_mover().release(fd, image);
    }

  private:
    const Fail fail_;
};

}  // namespace
}  // namespace vma::sock

// 1: the connection under `fd` is where it was to go, the kernel or the library; 0: it is not; -1: not a TCP socket of ours.
extern "C" __attribute__((visibility("default"), used)) int vma_test_move(int fd, int to_kernel,
                                                                          int fail) {
    using namespace vma::sock;
    vma::enter_library();
    int result = -1;
    {
        const ObjectRef ref{fd};
        if (ref && ref.get()->kind == ObjectKind::tcp) {
            auto& socket = static_cast<TcpSocket&>(*ref.get());
            FailingMover failing{Fail(fail)};
            if (fail) use_mover_only(&failing);
            socket.adopt_on_request();
            if (to_kernel)
                result =
                    socket.state() == SocketState::kernel || socket.hand_back(vma::Reason::exec);
            else
                result = socket.adopt(fd);
            if (fail) use_mover_only(nullptr);
        }
    }
    vma::leave_library();
    return result;
}
