#include "dev/verbs/port.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <cstdlib>

#include "base/sys.h"

namespace vma {

Status MovedFd::move(int* place) {
    if (*place < 0) return {};
    const Status moved = own_.adopt(*place);
    *place = own_.fd();
    if (moved) place_ = place;
    return moved;
}

void MovedFd::follow() {
    if (place_ != nullptr) *place_ = own_.fd();
}

void MovedFd::restore() {
    if (place_ == nullptr) return;
    *place_ = sys::fcntl(own_.fd(), F_DUPFD_CLOEXEC, 0);
    own_.reset();
    place_ = nullptr;
}

namespace {

// ibv_query_device_ex() without the symbol that its fallback names.
int query(const VerbsLibrary& library, ibv_context* context, ibv_device_attr_ex* out) {
    if (const verbs_context* table = verbs_get_ctx_op(context, query_device_ex))
        return table->query_device_ex(context, nullptr, out, sizeof *out);
    return library.query_device(context, &out->orig_attr);
}

}  // namespace

bool VerbsPort::has(ibv_context* context, int ifindex) {
    ibv_device_attr_ex attributes{};
    if (query(*library_, context, &attributes) != 0) return false;
    for (unsigned port = 1; port <= attributes.orig_attr.phys_port_cnt; ++port) {
        ibv_gid_entry entry{};
        for (uint32_t i = 0; i < 256; ++i) {
            const int error = library_->query_gid_ex(context, port, i, &entry, 0, sizeof entry);
            if (error == EINVAL) break;  // the table's end
            if (error != 0 || entry.ndev_ifindex != uint32_t(ifindex)) continue;
            number_ = uint8_t(port);
            attributes_ = attributes;
            return true;
        }
    }
    return false;
}

Status VerbsPort::open(int ifindex, std::string* why) {
    library_ = VerbsLibrary::get();
    if (library_ == nullptr) {
        *why = "libibverbs.so.1 cannot be loaded: install rdma-core";
        return Errno{ENOSYS};
    }
    ibv_device** list = library_->get_device_list(nullptr);
    for (ibv_device** d = list; d != nullptr && *d != nullptr && context_ == nullptr; ++d) {
        ibv_context* context = library_->open_device(*d);
        if (context == nullptr) continue;
        if (has(context, ifindex))
            context_ = context;
        else
            library_->close_device(context);
    }
    if (list != nullptr) library_->free_device_list(list);
    if (context_ == nullptr) {
        *why = "no RDMA device has a port on this interface";
        return Errno{ENODEV};
    }
    Status moved = command_.move(&context_->cmd_fd);
    if (moved) moved = async_.move(&context_->async_fd);
    if (moved) sys::fcntl(async_.fd(), F_SETFL, sys::fcntl(async_.fd(), F_GETFL) | O_NONBLOCK);
    return moved;
}

bool VerbsPort::has_event() const {
    pollfd waits{async_.fd(), POLLIN, 0};
    const timespec zero{};
    return sys::ppoll(&waits, 1, &zero) == 1 && (waits.revents & POLLIN) != 0;
}

bool VerbsPort::next_event(ibv_async_event* event) {
    async_.follow();
    const int before = errno;
    const bool told = library_->get_async_event(context_, event) == 0;
    errno = before;
    if (told) library_->ack_async_event(event);
    return told;
}

void VerbsPort::follow_fds() {
    command_.follow();
    async_.follow();
}

void VerbsPort::close() {
    if (context_ == nullptr) return;
    command_.restore();
    async_.restore();
    library_->close_device(context_);
    context_ = nullptr;
}

uint64_t VerbsPort::out_of_buffer() const {
    char text[32] = {};
    char name[] = "ports/0/hw_counters/out_of_buffer";
    name[6] = char('0' + number_);
    if (library_->read_sysfs_file(context_->device->ibdev_path, name, text, sizeof text) <= 0)
        return 0;
    return std::strtoull(text, nullptr, 10);
}

bool may_have_verbs_ports() {
    if (std::getenv("SOFTHCA") != nullptr) return true;
    DIR* directory = opendir("/sys/class/infiniband");
    if (directory == nullptr) return false;
    bool found = false;
    while (const dirent* e = readdir(directory)) found = found || e->d_name[0] != '.';
    closedir(directory);
    return found;
}

}  // namespace vma
