#include "base/drop.h"

namespace vma {
namespace {
struct Row {
    const char* name;
    const char* help;
};
constexpr Row kRows[] = {
#define DROP(name, help) {#name, help},
#include "base/drop_reasons.def"
#undef DROP
};
}  // namespace

const char* drop_name(DropReason r) {
    return r < DropReason::count ? kRows[unsigned(r)].name : "unknown";
}
const char* drop_help(DropReason r) {
    return r < DropReason::count ? kRows[unsigned(r)].help : "unknown";
}

}  // namespace vma
