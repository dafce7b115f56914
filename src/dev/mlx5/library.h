// libmlx5, found when it is first wanted (dlopen), as libibverbs is (dev/verbs/library.h), which has it loaded by then as the driver
// of such a device: where the queues of an mlx5 device are in memory (mlx5dv_init_obj(3)).
#pragma once

#include <infiniband/mlx5dv.h>

namespace vma {

struct Mlx5Library {
    bool (*is_supported)(ibv_device*);
    int (*init_obj)(mlx5dv_obj*, uint64_t);

    // Loaded by the first caller and kept to the process's end; null when it is not installed. Any thread.
    static const Mlx5Library* get();

    // False: the library does not tell.
    bool show(ibv_qp* qp, mlx5dv_qp* out) const;
    bool show(ibv_cq* cq, mlx5dv_cq* out) const;
};

// A device in software looks at its queues when it is called, after each doorbell and before each look of ours: no thread of its has
// to run first (VerbsRingConfig::kick).
class Kick {
  public:
    explicit Kick(unsigned (*function)(ibv_context*)) : function_(function) {}
    void of(ibv_context* context) { context_ = context; }
    void operator()() const {
        if (function_ != nullptr) [[unlikely]]
            function_(context_);
    }

  private:
    unsigned (*function_)(ibv_context*);
    ibv_context* context_ = nullptr;
};

}  // namespace vma
