#include "engine/driver_environment.h"

#include <cstdlib>

namespace vma {

void set_driver_environment(const Options& options) {
    const auto set = [](const char* name, const char* value) { setenv(name, value, 1); };
    const auto suggest = [](const char* name, const char* value) { setenv(name, value, 0); };
    // A device that is pulled out must not take the program with it.
    for (const char* name :
         {"MLX4_DEVICE_FATAL_CLEANUP", "MLX5_DEVICE_FATAL_CLEANUP", "RDMAV_ALLOW_DISASSOC_DESTROY"})
        set(name, "1");
    set("MLX4_POST_SEND_PREFER_BF", options.bf ? "1" : "0");
    set("MLX5_POST_SEND_PREFER_BF", options.bf ? "1" : "0");
    set("MLX5_SHUT_UP_BF", options.bf ? "0" : "1");
    if (!options.is_set(Opt::mem_alloc_type)) return;
    const char* const from = options.mem_alloc_type == 0   ? "ANON"
                             : options.mem_alloc_type == 1 ? "PREFER_CONTIG"
                                                           : "ALL";
    suggest("MLX_QP_ALLOC_TYPE", from);
    suggest("MLX_CQ_ALLOC_TYPE", from);
    if (options.mem_alloc_type >= 2) suggest("RDMAV_HUGEPAGES_SAFE", "1");
}

}  // namespace vma
