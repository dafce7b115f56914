#include "base/reason.h"

namespace vma {
namespace {
struct Row {
    const char *name, *meaning, *advice;
};
constexpr Row kRows[] = {
#define REASON(name, meaning, advice) {#name, meaning, advice},
#include "base/reasons.def"
#undef REASON
};
const Row& row(Reason r) {
    static constexpr Row unknown = {"unknown", "unknown reason", ""};
    return r < Reason::count ? kRows[unsigned(r)] : unknown;
}
}  // namespace

const char* reason_name(Reason r) { return row(r).name; }
const char* reason_meaning(Reason r) { return row(r).meaning; }
const char* reason_advice(Reason r) { return row(r).advice; }

}  // namespace vma
