#include "dev/mlx5/library.h"

#include <dlfcn.h>

#include <mutex>

namespace vma {

const Mlx5Library* Mlx5Library::get() {
    static std::once_flag once;
    static Mlx5Library library{};
    std::call_once(once, [] {
        void* const handle = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) return;
        library.is_supported =
            reinterpret_cast<bool (*)(ibv_device*)>(dlsym(handle, "mlx5dv_is_supported"));
        library.init_obj =
            reinterpret_cast<int (*)(mlx5dv_obj*, uint64_t)>(dlsym(handle, "mlx5dv_init_obj"));
    });
    return library.is_supported != nullptr && library.init_obj != nullptr ? &library : nullptr;
}

bool Mlx5Library::show(ibv_qp* qp, mlx5dv_qp* out) const {
    mlx5dv_obj object{};
    *out = {};
    object.qp = {qp, out};
    return init_obj(&object, MLX5DV_OBJ_QP) == 0;
}

bool Mlx5Library::show(ibv_cq* cq, mlx5dv_cq* out) const {
    mlx5dv_obj object{};
    *out = {};
    object.cq = {cq, out};
    return init_obj(&object, MLX5DV_OBJ_CQ) == 0;
}

}  // namespace vma
