// Page: the statistics page of this process, twice. The library works on an image in memory of its own; a file shows it to
// viewers. Both grow by parts, which never move.
//
// Whoever may write to the file may also cut it short at any moment, and then a load or a store of ours in a mapping of it would
// end the program by SIGBUS. So none is made: the kernel copies. The image is memory that nobody can cut (a sealed memfd), from
// where preadv(2) stores into the mapping of the file; what viewers wrote is read by pread(2). A copy that meets the missing end
// of the file is short and that is all: the file is given up, the image stays, and another file can show it. Not write(2), which
// would make a cut file long again and sends SIGXFSZ to a program that has lowered RLIMIT_FSIZE.
//
// Threads: the caller's lock. No malloc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/own_fd.h"
#include "stats/layout.h"

namespace vma::stats {

class Page {
  public:
    bool exists() const { return used_ != 0; }
    bool shown() const { return file_.valid(); }
    // The file has been given up because it was cut short; until show_in().
    bool lost() const { return lost_; }

    // Both without a file. 0 or -errno.
    int make();
    void drop();  // memory and descriptors go; a file stays

    Header& header() const { return *reinterpret_cast<Header*>(parts_[0].image); }
    template <class T>
    void put(T& word_of_header, std::type_identity_t<T> value) {
        word_of_header = value;
        show(&word_of_header, sizeof word_of_header);
    }
    // Lets viewers see these bytes of the header.
    void show(const void* from, size_t n);

    // A part of rows, all zeros: its number, or -errno when there is no room for it, in memory or in the file.
    int append(uint32_t rows, uint32_t row_size);
    uint64_t offset(unsigned part) const { return parts_[part].offset; }
    uint8_t* row(unsigned part, uint32_t i) const {
        return parts_[part].image + i * size_t(parts_[part].row_size + kTail);
    }
    // Lets viewers see a row. Its first word is their sequence number, which this sets: it is odd while the rest changes.
    void show_row(unsigned part, uint32_t i);

    // A new file of this name, O_EXCL, mode 0600 until all of the image is in it, then 0640 whatever the umask; without the
    // words of viewers. `path` stays where it is. 0 or -errno; lost() when it was cut meanwhile. One that cannot be made
    // leaves no name.
    int show_in(const char* path);
    void remove_file();  // its name too, unless that is another's by now
    // Gives the file up if it is shorter than it should be.
    void look_at_length();
    // What viewers wrote; false: there is no file, or it has been given up for this.
    bool read(Control& out);

  private:
    // Behind each row of the image stands the sequence number that ends its writing.
    static constexpr size_t kTail = 64;
    struct Part {
        uint8_t* image = nullptr;
        uint8_t* file = nullptr;  // null: not shown
        uint64_t image_offset = 0, offset = 0;
        size_t image_bytes = 0, bytes = 0;
        uint32_t rows = 0, row_size = 0;
    };

    int add_part(Part part);
    int map_file(Part& part);
    void show_all();
    void lose();
    void close_file();

    std::array<Part, kMaxSegments + 1> parts_;  // first header and Control, which are no rows
    unsigned used_ = 0;
    uint64_t image_end_ = 0, end_ = 0;
    OwnFd image_, file_;
    const char* path_ = nullptr;
    bool lost_ = false;
};

}  // namespace vma::stats
