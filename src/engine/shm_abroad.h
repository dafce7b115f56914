// Neighbours in other network namespaces (dev/shm/introduction.h): this process's link to who introduces it to them, which is the broker
// of the host by its policy (docs/decisions/0031-neighbours-abroad.md). Without one there are none.
//
// Internal thread only, but for publish(). A question waits for its answer, kAnswer at most; then the link is given up, and made anew
// at the earliest after kJoinAgain.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "base/ip_addr.h"
#include "base/own_fd.h"
#include "base/result.h"
#include "base/time.h"
#include "dev/shm/introduction.h"

namespace vma {

// Who introduces: asked for a link, and told what this process accepts on.
class ShmIntroducer {
  public:
    // One end of a socket pair, the caller's. EDQUOT: the policy gives this process no neighbours; else there is nobody to ask.
    virtual Result<int> join() = 0;
    virtual Status publish(const Endpoint& local) = 0;

  protected:
    ~ShmIntroducer() = default;
};

class ShmAbroad {
  public:
    struct Met {
        uint64_t introduction = 0;
        int channel = -1;
        Endpoint sought;  // port 0: the other side sought us
    };

    static void set_introducer(ShmIntroducer* introducer);
    // Any thread. Connections that are accepted there may have their other end in another namespace. At most kMostPublished.
    void publish(const Endpoint& local);
    // Publishes what is to be published, again by every new link.
    void turn(Instant now);
    // Who accepts there, beside those we know? Their channels come by next(). ENOENT: nobody; ENOLINK: there is nobody to ask.
    Status seek(const Endpoint& remote, Instant now);
    Status show(uint64_t introduction, int twin);
    Status prove(uint64_t introduction, int twin);
    // Its channel has ended.
    void forget(uint64_t introduction);
    // The next whom we have met; the channel is the caller's. Looks at the link.
    bool next(Met& out);
    int fd() const { return link_.fd(); }
    // So many there have been: another number, another descriptor to watch.
    uint32_t links() const { return links_; }

    static constexpr size_t kMostPublished = 64;

  private:
    static constexpr Duration kAnswer = Duration::seconds(1);
    static constexpr Duration kJoinAgain = Duration::seconds(1);

    bool join(Instant now);
    void lost();
    // 0: a message; EAGAIN: none; else the link is over.
    int read_one(shm::LinkMessage& message, int& passed);
    Status ask(shm::LinkMessage question, int twin);
    Status about(shm::LinkWord word, uint64_t introduction, int twin);

    OwnFd link_;
    Instant next_join_{};
    uint32_t serial_ = 0, links_ = 0;
    std::deque<Met> met_;
    std::vector<Endpoint> published_;
    size_t told_ = 0;  // of published_, over this link
    std::mutex lock_;  // of the next
    std::vector<Endpoint> to_publish_;
};

}  // namespace vma
