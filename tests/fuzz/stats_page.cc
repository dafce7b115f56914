// A statistics page that its process, or whoever may write to the file, has made to lie. Input: its length (three bytes; beyond the
// true one: that), then records of (offset of three bytes, count, bytes) that go over a good page.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/fuzz_check.h"
#include "stats/publisher.h"
#include "stats/reader.h"

using namespace vma;
using namespace vma::stats;

namespace {

// A folder with a page of this process in it, and the bytes of the page.
class Page {
  public:
    Page() {
        FUZZ_CHECK(mkdtemp(folder_.data()) != nullptr);
        configure(folder_, "fuzz", "1.2.3");
        RowHandle row;
        SocketIdentity udp;
        udp.fd = 3;
        udp.domain = AF_INET;
        udp.type = SOCK_DGRAM;
        udp.path = Path::offloaded;
        set_socket(row, udp);
        std::ifstream in(path(), std::ios::binary);
        good_.assign(std::istreambuf_iterator<char>(in), {});
        FUZZ_CHECK(good_.size() > sizeof(Header));
        withdraw(false);
    }
    ~Page() {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }
    const std::string& folder() const { return folder_; }
    const std::string& good() const { return good_; }
    void write(const std::string& bytes) const {
        std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
    }

  private:
    std::string path() const { return folder_ + "/vmastat." + std::to_string(getpid()); }
    std::string folder_ = "/tmp/vma-fuzz-XXXXXX";
    std::string good_;
};

uint32_t number(const uint8_t* p) { return uint32_t(p[0] | p[1] << 8 | p[2] << 16); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Page page;
    if (size < 3) return 0;
    std::string bytes = page.good();
    const uint32_t length = number(data);
    size_t at = 3;
    while (size - at >= 4) {
        const size_t offset = number(data + at) % bytes.size();
        const size_t n = std::min({size_t(data[at + 3]), size - at - 4, bytes.size() - offset});
        std::copy_n(data + at + 4, n, bytes.begin() + ptrdiff_t(offset));
        at += 4 + n;
    }
    bytes.resize(std::min<size_t>(length, bytes.size()));
    page.write(bytes);
    std::string why;
    const auto file = PageFile::open(page.folder(), uint32_t(getpid()), &why);
    Snapshot out;
    const bool good = file && file->read(out, &why);
    FUZZ_CHECK(good == why.empty());
    if (!good) return 0;
    FUZZ_CHECK(out.program == printable(out.program.data(), out.program.size()));
    // No more rows than the file has room for.
    FUZZ_CHECK(out.sockets.size() * sizeof(SocketRow) <= bytes.size());
    FUZZ_CHECK(out.rules.size() * sizeof(RuleRow) <= bytes.size());
    Header header;
    (void)file->header(header);
    (void)file->answered(Verb::counters);
    (void)file->process_lives();
    return 0;
}
