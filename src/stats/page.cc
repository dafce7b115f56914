#include "stats/page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <utility>

#include "base/sys.h"
#include "stats/page_file.h"

namespace vma::stats {
namespace {

constexpr size_t whole_pages(size_t n) { return (n + 4095) & ~size_t{4095}; }

}  // namespace

int Page::make() {
    int error = sealed_memory("vma-stats", image_);
    if (error == 0) {
        Part part;
        part.image_bytes = part.bytes = kFirstSegment;
        error = add_part(part);
    }
    if (error) image_.reset();
    return error;
}

int Page::append(uint32_t rows, uint32_t row_size) {
    Part part;
    part.rows = rows;
    part.row_size = row_size;
    part.bytes = whole_pages(size_t(rows) * row_size);
    part.image_bytes = whole_pages(rows * (row_size + kTail));
    if (const int error = add_part(part)) return error;
    // A cut just before has been hidden by the file's growing again: what it took is put back.
    if (shown()) show_all();
    return int(used_) - 1;
}

int Page::add_part(Part part) {
    if (used_ == parts_.size()) return -ENOSPC;
    part.image_offset = image_end_;
    part.offset = end_;
    int error = reserve_blocks(image_.fd(), image_end_, part.image_bytes);
    if (error == 0) error = map_shared(image_.fd(), image_end_, part.image_bytes, &part.image);
    if (error) return error;
    if (shown()) {
        error = reserve_blocks(file_.fd(), end_, part.bytes);
        if (error == 0) error = map_file(part);
        if (error) {
            sys::munmap(part.image, part.image_bytes);
            return error;
        }
    }
    parts_[used_++] = part;
    image_end_ += part.image_bytes;
    end_ += part.bytes;
    return 0;
}

int Page::map_file(Part& part) {
    return map_shared(file_.fd(), part.offset, part.bytes, &part.file);
}

void Page::show(const void* from, size_t n) {
    if (!shown()) return;
    const Part& part = parts_[0];
    const long at = static_cast<const uint8_t*>(from) - part.image;
    if (sys::raw(SYS_pread64, image_.fd(), sys::ptr(part.file + at), long(n), at) != long(n))
        lose();
}

void Page::show_row(unsigned index, uint32_t i) {
    const Part& part = parts_[index];
    const size_t n = part.row_size, at = i * (n + kTail);
    auto& changing = *reinterpret_cast<uint32_t*>(part.image + at);
    auto& changed = *reinterpret_cast<uint32_t*>(part.image + at + n);
    changing = changed + 1;
    changed += 2;
    if (!shown()) return;
    uint8_t* const to = part.file + i * n;
    const iovec pieces[] = {
        {to, sizeof changing}, {to + sizeof changing, n - sizeof changing}, {to, sizeof changed}};
    if (copy_in_order(image_.fd(), part.image_offset + at, pieces) != n + sizeof changed) lose();
}

void Page::show_all() {
    show(parts_[0].image, sizeof(Header));
    for (unsigned index = 1; index < used_; index++)
        for (uint32_t i = 0; i < parts_[index].rows && shown(); i++)
            if (*reinterpret_cast<const uint32_t*>(row(index, i)) != 0) show_row(index, i);
}

int Page::show_in(const char* path) {
    lost_ = false;
    const int fd = create_page_file(path);
    if (fd < 0) return fd;
    path_ = path;
    if (const Status kept = file_.adopt(fd); !kept) {
        sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(path), 0);
        return -kept.error();
    }
    int error = reserve_blocks(file_.fd(), 0, end_);
    for (unsigned i = 0; i < used_ && error == 0; i++) error = map_file(parts_[i]);
    if (error == 0) {
        header().state = PageState::in_making;
        show_all();
        put(header().state, PageState::ready);
        if (lost_) return -EFAULT;
        error = int(sys::raw(SYS_fchmod, file_.fd(), 0640));
    }
    if (error) remove_file();
    return error;
}

void Page::lose() {
    lost_ = true;
    remove_file();
}

void Page::look_at_length() {
    if (!shown()) return;
    const long size = sys::raw(SYS_lseek, file_.fd(), 0, SEEK_END);
    if (size >= 0 && uint64_t(size) < end_) lose();
}

bool Page::read(Control& out) {
    if (!shown()) return false;
    const long n =
        sys::raw(SYS_pread64, file_.fd(), sys::ptr(&out), sizeof out, long(kControlOffset));
    if (n != long(sizeof out)) lose();
    return shown();
}

void Page::remove_file() {
    if (!shown()) return;
    struct stat mine, named;
    if (sys::raw(SYS_fstat, file_.fd(), sys::ptr(&mine)) == 0 &&
        sys::raw(SYS_newfstatat, AT_FDCWD, sys::ptr(path_), sys::ptr(&named),
                 AT_SYMLINK_NOFOLLOW) == 0 &&
        mine.st_ino == named.st_ino && mine.st_dev == named.st_dev)
        sys::raw(SYS_unlinkat, AT_FDCWD, sys::ptr(path_), 0);
    close_file();
}

void Page::close_file() {
    for (Part& part : parts_)
        if (uint8_t* const memory = std::exchange(part.file, nullptr))
            sys::munmap(memory, part.bytes);
    file_.reset();
}

void Page::drop() {
    close_file();
    for (unsigned i = 0; i < used_; i++) sys::munmap(parts_[i].image, parts_[i].image_bytes);
    parts_ = {};
    used_ = 0;
    image_end_ = end_ = 0;
    image_.reset();
    lost_ = false;
}

}  // namespace vma::stats
