// The broker's descriptors. It has one thread for all clients, and close(2) of what a client has made may wait for whoever is behind it
// (SO_LINGER of a connection, also of one that lies unread in a socket that is closed; a file of FUSE), so that is closed by others.
#pragma once

namespace vmad {

// A descriptor that is closed at the end.
class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    // A client has made it, or may have put messages into it.
    static Fd of_client(int fd) {
        Fd result(fd);
        result.of_client_ = true;
        return result;
    }
    Fd(Fd&& o) noexcept : fd_(o.fd_), of_client_(o.of_client_) { o.fd_ = -1; }
    Fd& operator=(Fd&& o) noexcept;
    ~Fd() { reset(); }
    void reset();
    int get() const { return fd_; }
    bool valid() const { return fd_ >= 0; }

  private:
    int fd_ = -1;
    bool of_client_ = false;
};

// What came with a message: as a rule it is closed when this returns, and if not within kPatienceMs it will be some time.
inline constexpr unsigned kPatienceMs = 100;
void close_received(int fd);
// How often it was not.
unsigned held_up();
// This process is not the broker (a child of it, that serves one): it closes everything itself.
void may_wait();

}  // namespace vmad
