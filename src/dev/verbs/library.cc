#include "dev/verbs/library.h"

#include <dlfcn.h>

#include <mutex>

namespace vma {
namespace {

template <class F>
bool find(void* handle, const char* name, F* out) {
    *out = reinterpret_cast<F>(dlsym(handle, name));
    return *out != nullptr;
}

bool find_all(void* handle, VerbsLibrary* v) {
    find(handle, "softhca_kick", &v->kick);
    return find(handle, "ibv_get_device_list", &v->get_device_list) &&
           find(handle, "ibv_free_device_list", &v->free_device_list) &&
           find(handle, "ibv_open_device", &v->open_device) &&
           find(handle, "ibv_close_device", &v->close_device) &&
           find(handle, "ibv_query_device", &v->query_device) &&
           find(handle, "_ibv_query_gid_ex", &v->query_gid_ex) &&
           find(handle, "ibv_alloc_pd", &v->alloc_pd) &&
           find(handle, "ibv_dealloc_pd", &v->dealloc_pd) &&
           find(handle, "ibv_reg_mr", &v->reg_mr) && find(handle, "ibv_dereg_mr", &v->dereg_mr) &&
           find(handle, "ibv_create_comp_channel", &v->create_comp_channel) &&
           find(handle, "ibv_destroy_comp_channel", &v->destroy_comp_channel) &&
           find(handle, "ibv_create_cq", &v->create_cq) &&
           find(handle, "ibv_destroy_cq", &v->destroy_cq) &&
           find(handle, "ibv_get_cq_event", &v->get_cq_event) &&
           find(handle, "ibv_ack_cq_events", &v->ack_cq_events) &&
           find(handle, "ibv_get_async_event", &v->get_async_event) &&
           find(handle, "ibv_ack_async_event", &v->ack_async_event) &&
           find(handle, "ibv_modify_qp", &v->modify_qp) &&
           find(handle, "ibv_destroy_qp", &v->destroy_qp) &&
           find(handle, "ibv_read_sysfs_file", &v->read_sysfs_file);
}

}  // namespace

const VerbsLibrary* VerbsLibrary::get() {
    static std::mutex mutex;
    static VerbsLibrary library;
    static enum { untried, missing, loaded } state = untried;
    std::lock_guard locked(mutex);
    if (state == untried) {
        void* handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
        state = handle != nullptr && find_all(handle, &library) ? loaded : missing;
        if (handle != nullptr && state == missing) dlclose(handle);
    }
    return state == loaded ? &library : nullptr;
}

}  // namespace vma
