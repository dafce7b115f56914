// pthread_cancel in a blocking call unwinds through our hooks: destructors run, the process goes on, the library is left.
#include <sys/epoll.h>
#include <sys/select.h>

#include <atomic>

#include "intercept/preload/preload.h"

namespace {

struct Unwound {
    std::atomic<int>& count;
    ~Unwound() { count++; }
};

class Cancel : public testing::Test {
  protected:
    // `block` must block for ever; it runs in a thread that is cancelled once it sleeps.
    void cancel(std::function<void()> block) {
        std::atomic<int> tid{0};
        std::atomic<int> unwound{0};
        struct Start {
            std::function<void()>* block;
            std::atomic<int>*tid, *unwound;
        } start{&block, &tid, &unwound};
        pthread_t thread;
        ASSERT_EQ(pthread_create(
                      &thread, nullptr,
                      [](void* arg) -> void* {
                          auto* s = static_cast<Start*>(arg);
                          Unwound mark{*s->unwound};
                          *s->tid = gettid();
                          (*s->block)();
                          return nullptr;
                      },
                      &start),
                  0);
        while (tid == 0) std::this_thread::yield();
        ASSERT_TRUE(wait_asleep(tid));
        ASSERT_EQ(pthread_cancel(thread), 0);
        void* result = nullptr;
        ASSERT_EQ(pthread_join(thread, &result), 0);
        EXPECT_EQ(result, PTHREAD_CANCELED);
        EXPECT_EQ(unwound, 1);
        EXPECT_EQ(send(pair.b, "q", 1, 0), 1);
        EXPECT_EQ(recv(pair.a, &byte, 1, 0), 1);
    }
    Pair pair;
    char byte = 0;
};

TEST_F(Cancel, RecvInsideTheLibrary) {
    cancel([&] { recv(pair.a, &byte, 1, 0); });
}
TEST_F(Cancel, PollInsideTheLibrary) {
    pollfd p{pair.a, POLLIN, 0};
    cancel([&] { poll(&p, 1, -1); });
}
TEST_F(Cancel, AcceptInsideTheLibrary) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(listen(fd, 1), 0);
    cancel([&] { accept(fd, nullptr, nullptr); });
    close(fd);
}
TEST_F(Cancel, KernelCalls) {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    cancel([&] {
        if (read(fds[0], &byte, 1) != 0) ADD_FAILURE();
    });
    cancel([&] {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fds[0], &set);
        select(fds[0] + 1, &set, nullptr, nullptr, nullptr);
    });
    const int ep = epoll_create1(0);
    epoll_event event{};
    cancel([&] { epoll_wait(ep, &event, 1, -1); });
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr name{};
    name.sa_family = AF_UNIX;
    ASSERT_EQ(bind(listener, &name, sizeof(name.sa_family)), 0);  // autobind: an abstract name
    ASSERT_EQ(listen(listener, 1), 0);
    cancel([&] { accept(listener, nullptr, nullptr); });
    for (int fd : {fds[0], fds[1], ep, listener}) close(fd);
}

}  // namespace
