// A main for fuzz targets built without libFuzzer: runs every file given, and every file of every directory given, through
// the target once. Fails when there was no file, so that an empty corpus is noticed.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

bool run(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) {
        std::fprintf(stderr, "cannot read %s\n", file.c_str());
        return false;
    }
    const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
    // An exact allocation, so that a sanitizer sees the first byte too far.
    const auto exact = std::make_unique<uint8_t[]>(bytes.size());
    for (size_t i = 0; i < bytes.size(); i++) exact[i] = uint8_t(bytes[i]);
    std::printf("%s\n", file.c_str());
    std::fflush(stdout);
    LLVMFuzzerTestOneInput(exact.get(), bytes.size());
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    unsigned runs = 0;
    for (int i = 1; i < argc; i++) {
        std::vector<std::filesystem::path> files;
        if (std::filesystem::is_directory(argv[i])) {
            for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
                if (entry.is_regular_file()) files.push_back(entry.path());
            }
        } else {
            files.emplace_back(argv[i]);
        }
        for (const auto& file : files) {
            if (!run(file)) return 1;
            runs++;
        }
    }
    std::printf("%u inputs\n", runs);
    return runs > 0 ? 0 : 1;
}
