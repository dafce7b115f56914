/* A program may give calls names of its own by macros before it includes the header: sockperf does, for --load-vma. No header that ours
 * includes may declare such a call then. That this compiles is the test. */
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

extern int own_call;
#define readv(...) own_call(__VA_ARGS__)
#define writev(...) own_call(__VA_ARGS__)
#define preadv(...) own_call(__VA_ARGS__)
#define pwritev(...) own_call(__VA_ARGS__)
#define poll(...) own_call(__VA_ARGS__)
#define ppoll(...) own_call(__VA_ARGS__)
#define ioctl(...) own_call(__VA_ARGS__)
#define open(...) own_call(__VA_ARGS__)
#define creat(...) own_call(__VA_ARGS__)
#define fcntl(...) own_call(__VA_ARGS__)
#define sigaction(...) own_call(__VA_ARGS__)
#include <mellanox/vma_extra.h>
