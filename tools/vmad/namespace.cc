#include "vmad/namespace.h"

#include <dirent.h>
#include <fnmatch.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <memory>

#include "base/sys.h"
#include "vmad/rescue.h"

#ifndef SIOCGSKNS
#define SIOCGSKNS 0x894C
#endif

namespace vmad {

constexpr char kNames[] = "/run/netns";

bool Namespace::is_named(const char* pattern) const {
    const std::unique_ptr<DIR, int (*)(DIR*)> names(opendir(kNames), closedir);
    if (!names) return false;
    while (const dirent* const entry = readdir(names.get())) {
        struct stat st {};
        if (fnmatch(pattern, entry->d_name, FNM_PERIOD) == 0 &&
            fstatat(dirfd(names.get()), entry->d_name, &st, 0) == 0 && st.st_dev == device &&
            st.st_ino == inode)
            return true;
    }
    return false;
}

bool describe_namespace(int fd, Namespace& out) {
    struct stat st {};
    const Fd users(ioctl(fd, NS_GET_USERNS));
    out.host = false;
    if (!users.valid() || ioctl(users.get(), NS_GET_OWNER_UID, &out.owner) != 0 ||
        fstat(fd, &st) != 0)
        return false;
    out.device = st.st_dev;
    out.inode = st.st_ino;
    return true;
}

int namespace_of_socket(int socket) { return int(vma::sys::raw(SYS_ioctl, socket, SIOCGSKNS)); }

}  // namespace vmad
