// Hooks: stdio and POSIX AIO. libc's own reads and writes never pass our symbols, so a socket that enters them is handed
// back to the kernel first (process-model.md §7).
#include "base/own_fd.h"
#include "intercept/hooks.h"
#include "intercept/process.h"

namespace vma::hook {
namespace {

void enters_stdio(int fd) {
    if (ours(fd)) tell([&] { sock::fd_enters_stdio(fd); });
}

// The descriptor under `stream` is about to be closed by libc.
void leaves_with(FILE* stream) {
    if (sock::nothing_ours() || stream == nullptr || on_borrowed_memory()) return;
    const int saved = errno;
    const int fd = fileno(stream);
    errno = saved;
    if (fd >= 0 && ours(fd)) tell([&] { sock::implicit_close(fd); });
}

template <class Block>
void before_aio(const Block* cb) {
    if (cb != nullptr) needs_kernel(cb->aio_fildes, Reason::unsupported_option);
}
template <class Block>
void before_aio(Block* const* list, int n) {
    for (int i = 0; list != nullptr && i < n; i++) before_aio(list[i]);
}

}  // namespace

FILE* fdopen(int fd, const char* mode) {
    enters_stdio(fd);
    return libc.fdopen(fd, mode);
}
VMA_ALIAS(_IO_fdopen, fdopen);

FILE* freopen(const char* path, const char* mode, FILE* stream) {
    if (path != nullptr) leaves_with(stream);
    return libc.freopen(path, mode, stream);
}

FILE* freopen64(const char* path, const char* mode, FILE* stream) {
    if (path != nullptr) leaves_with(stream);
    return libc.freopen64(path, mode, stream);
}

int fclose(FILE* stream) {
    leaves_with(stream);
    return libc.fclose(stream);
}
VMA_ALIAS(_IO_fclose, fclose);

int vdprintf(int fd, const char* format, va_list ap) {
    enters_stdio(fd);
    return libc.vdprintf(fd, format, ap);
}

int __vdprintf_chk(int fd, int flag, const char* format, va_list ap) {
    enters_stdio(fd);
    return libc.__vdprintf_chk(fd, flag, format, ap);
}

int dprintf(int fd, const char* format, ...) {
    va_list ap;
    va_start(ap, format);
    const int result = vdprintf(fd, format, ap);
    va_end(ap);
    return result;
}

int __dprintf_chk(int fd, int flag, const char* format, ...) {
    va_list ap;
    va_start(ap, format);
    const int result = __vdprintf_chk(fd, flag, format, ap);
    va_end(ap);
    return result;
}

int aio_read(aiocb* cb) {
    before_aio(cb);
    return libc.aio_read(cb);
}
int aio_read64(aiocb64* cb) {
    before_aio(cb);
    return libc.aio_read64(cb);
}
int aio_write(aiocb* cb) {
    before_aio(cb);
    return libc.aio_write(cb);
}
int aio_write64(aiocb64* cb) {
    before_aio(cb);
    return libc.aio_write64(cb);
}
int lio_listio(int mode, aiocb* const* list, int n, sigevent* event) {
    before_aio(list, n);
    return libc.lio_listio(mode, list, n, event);
}
int lio_listio64(int mode, aiocb64* const* list, int n, sigevent* event) {
    before_aio(list, n);
    return libc.lio_listio64(mode, list, n, event);
}

}  // namespace vma::hook
