// A module for redis-server that gives root up once the server's sockets are there, as a server does that binds its ports
// as root. No header of redis: the first word of a context is the function that looks up the module interface by name.
#include <grp.h>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) int RedisModule_OnLoad(void* context, void**,
                                                                         int) {
    using GetApi = int (*)(const char* name, void* to);
    using SetAttributes = void (*)(void* context, const char* name, int version, int api_version);
    SetAttributes set_attributes = nullptr;
    const GetApi get_api = reinterpret_cast<GetApi>(*static_cast<void**>(context));
    if (get_api("RedisModule_SetModuleAttribs", static_cast<void*>(&set_attributes)) != 0) return 1;
    set_attributes(context, "drop", 1, 1);
    constexpr uid_t kNobody = 65534;
    return setgroups(0, nullptr) || setresgid(kNobody, kNobody, kNobody) ||
           setresuid(kNobody, kNobody, kNobody);
}
