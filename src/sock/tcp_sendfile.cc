// sendfile(2) into a TCP socket that rings serve: the file's bytes by pieces through send().
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>

#include "sock/context.h"
#include "sock/tcp_socket.h"

namespace vma::sock {
namespace {

// Memory for what sendfile() reads, not the program's. One is kept for the next call: a mapping made and undone for each file
// costs a web server's worker more than the file.
class FilePiece {
  public:
    static constexpr size_t kBytes = 256 * 1024;
    FilePiece() : memory_(spare_.exchange(nullptr, std::memory_order_acquire)) {
        if (memory_) return;
        memory_ =
            sys::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sys::failed(memory_)) memory_ = nullptr;
    }
    ~FilePiece() {
        void* none = nullptr;
        if (memory_ && !spare_.compare_exchange_strong(none, memory_, std::memory_order_release))
            sys::munmap(memory_, kBytes);
    }
    FilePiece(const FilePiece&) = delete;
    FilePiece& operator=(const FilePiece&) = delete;
    void* memory() const { return memory_; }

  private:
    static std::atomic<void*> spare_;
    void* memory_;
};
std::atomic<void*> FilePiece::spare_{nullptr};

}  // namespace

Outcome TcpSocket::sendfile(int fd, int in_fd, off_t* offset, size_t count) {
    if (state() == SocketState::kernel) {
        if (adoption_due()) (void)adopt(fd);
        if (Outcome kernel; in_kernel(&kernel)) return kernel;
    }
    if (state() != SocketState::offloaded) return Outcome::kernel();
    struct stat info;
    if (int(sys::raw(SYS_fstat, in_fd, sys::ptr(&info))) < 0) return Outcome::error(EBADF);
    // Which of the special files can be sent only the kernel knows.
    if (S_ISCHR(info.st_mode) && hand_back(Reason::unsupported_option)) return Outcome::kernel();
    if (!S_ISREG(info.st_mode) && !S_ISBLK(info.st_mode)) return Outcome::error(EINVAL);
    if (count == 0)
        return (sys::fcntl(in_fd, F_GETFL) & O_ACCMODE) == O_WRONLY ? Outcome::error(EBADF)
                                                                    : Outcome::value(0);
    const FilePiece piece;
    if (piece.memory() == nullptr) return Outcome::error(ENOMEM);
    void* const buffer = piece.memory();
    const size_t room = std::min(count, FilePiece::kBytes);
    off_t at = offset ? *offset : off_t(sys::raw(SYS_lseek, in_fd, 0, SEEK_CUR));
    size_t done = 0;
    Outcome last = Outcome::value(0);
    while (done < count) {
        const long got =
            sys::raw(SYS_pread64, in_fd, sys::ptr(buffer), long(std::min(room, count - done)), at);
        if (got < 0) last = Outcome::error(int(-got));
        if (got <= 0) break;
        if (info.st_size == 0 && done == 0 && hand_back(Reason::unsupported_option)) {
            // A file of /proc or the like, which has content and no size.
            last = Outcome::kernel();
            break;
        }
        iovec iov{buffer, size_t(got)};
        msghdr msg{};
        msg.msg_iov = &iov;
        msg.msg_iovlen = 1;
        last = send(fd, &msg, 0);
        if (last.kind == Outcome::Kind::kernel) {
            // Handed back between two pieces: this one and the others go by the twin.
            const ssize_t n = sys::sendmsg(fd, &msg, MSG_NOSIGNAL);
            unpin(last);
            last = n < 0 ? Outcome::error(int(-n)) : Outcome::value(n);
        }
        if (last.kind != Outcome::Kind::value) break;
        done += size_t(last.v);
        at += last.v;
        if (last.v < got) break;
    }
    if (done > 0) {
        if (offset)
            *offset = at;
        else
            sys::raw(SYS_lseek, in_fd, at, SEEK_SET);
        return Outcome::value(long(done));
    }
    return last;
}

}  // namespace vma::sock
