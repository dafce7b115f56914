// vma_docgen: writes the documents that are made from tables. `vma_docgen config` prints docs/CONFIG.md, `vma_docgen schema`
// docs/libvma.schema.json, `vma_docgen help` (or --help) the variables as plain text.
#include <cstdio>
#include <string_view>

#include "config/options.h"

int main(int argc, char** argv) {
    const std::string_view what = argc == 2 ? argv[1] : "";
    if (what == "config" || what == "schema" || what == "help" || what == "--help") {
        const std::string text = what == "config"   ? vma::options_markdown()
                                 : what == "schema" ? vma::options_schema()
                                                    : vma::options_help();
        return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
                       std::fflush(stdout) == 0
                   ? 0
                   : 1;
    }
    std::fprintf(stderr, "usage: %s config|schema|help\n", argv[0]);
    return 2;
}
