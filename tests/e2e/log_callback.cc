// A program that receives the log itself, for test_warnings.py. Linked at a fixed address, so that its environment can name the
// function.
#include <sys/socket.h>

#include <cstdio>

extern "C" void receive(int level, const char* line) { std::printf("level %d:%s", level, line); }

int main() {
    std::printf("receiver %p\n", reinterpret_cast<void*>(receive));
    return socket(AF_INET, SOCK_DGRAM, 0) < 0;
}
