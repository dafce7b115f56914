// Using: the object behind a descriptor for the time of one call, settled for use in this process.
#pragma once

#include "sock/epoll.h"
#include "sock/fd_table.h"
#include "sock/fork.h"
#include "sock/tcp_socket.h"
#include "sock/udp_socket.h"

namespace vma::sock {

class Using {
  public:
    explicit Using(int fd) : ref_(fd) {
        if (ref_ && ref_.get()->inherited.load(std::memory_order_acquire)) inherit(*ref_.get());
    }
    UdpSocket* udp() const {
        return ref_ && ref_.get()->kind == ObjectKind::udp ? static_cast<UdpSocket*>(ref_.get())
                                                           : nullptr;
    }
    TcpSocket* tcp() const {
        return ref_ && ref_.get()->kind == ObjectKind::tcp ? static_cast<TcpSocket*>(ref_.get())
                                                           : nullptr;
    }
    Socket* socket() const {
        return ref_ && ref_.get()->is_socket()
                   ? static_cast<Socket*>(static_cast<Pollable*>(ref_.get()))
                   : nullptr;
    }
    Epoll* epoll() const {
        return ref_ && ref_.get()->kind == ObjectKind::epoll ? static_cast<Epoll*>(ref_.get())
                                                             : nullptr;
    }
    Object* object() const { return ref_.get(); }

  private:
    ObjectRef ref_;
};

}  // namespace vma::sock
