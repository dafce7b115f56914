// The policy file of vmad. Input: its text.
#include <sys/types.h>

#include <string>
#include <string_view>

#include "fuzz/fuzz_check.h"
#include "vmad/policy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    vmad::Policy policy;
    std::string why;
    const bool good =
        policy.parse(std::string_view(reinterpret_cast<const char*>(data), size), "file", &why);
    // What is wrong is told, with the line.
    FUZZ_CHECK(good == why.empty());
    FUZZ_CHECK(good || why.starts_with("file:"));
    const gid_t groups[] = {0, 60, 65534};
    vmad::Namespace own;
    own.host = false;
    own.owner = 1000;
    for (const uid_t user : {0u, 1000u, 65534u}) {
        const vmad::Allowance& allowance = policy.of(user, groups);
        // A text that cannot be read changes nothing: without rules everything is allowed, but nothing in other namespaces.
        FUZZ_CHECK(good || !allowance.denied);
        const vmad::Allowance& elsewhere = policy.of(user, groups, own);
        FUZZ_CHECK(good || elsewhere.denied);
        // It takes a rule that says so.
        FUZZ_CHECK(elsewhere.denied ||
                   std::string_view(reinterpret_cast<const char*>(data), size).find("in") !=
                       std::string_view::npos);
        // Nobody meets others by a text that does not say it, and names can be told to other processes.
        FUZZ_CHECK(allowance.share.empty() ||
                   std::string_view(reinterpret_cast<const char*>(data), size).find("share") !=
                       std::string_view::npos);
        FUZZ_CHECK(allowance.share.size() <= 31 && allowance.share.find('\0') == std::string::npos);
        for (const vmad::PortRange& range : allowance.ports) {
            FUZZ_CHECK(range.first <= range.last);
            FUZZ_CHECK(allowance.has_port(range.first) && allowance.has_port(range.last));
        }
        (void)allowance.has_interface("eth0");
    }
    return 0;
}
