// Epoll sets: the program's epfd stays a real kernel epoll set that holds the kernel's descriptors; members of ours are
// kept here, with a ready list, so that a wait costs O(ready). epoll(7) decides the semantics.
//
// Locks: ctl_lock_ (membership) -> Watch lock of the member; Watch lock -> ready_lock_. poll_events() takes none.
#pragma once

#include <sys/epoll.h>
#include <time.h>

#include <cstdint>
#include <vector>

#include "base/list.h"
#include "base/log.h"
#include "base/spin_lock.h"
#include "sock/api.h"
#include "sock/pollable.h"
#include "sock/wait.h"
#include "stats/publisher.h"

namespace vma::sock {

class Epoll;
class EpollTarget;
class OrderSink;
struct OrderMemory;
struct ReadyMember;

// One membership: (open description, descriptor number) in one epoll set, as in Linux.
struct EpollItem {
    ListHook watch_hook;   // in the member's Watch
    ListHook ready_hook;   // in Epoll::ready_, when it may have something to report
    ListHook member_hook;  // in Epoll::members_
    Epoll* epoll = nullptr;
    Pollable* member = nullptr;  // not referenced: the member takes its items down when it goes
    int fd = -1;
    bool in_kernel =
        false;  // registered in the kernel set; kept here because the member may be adopted
    bool prepared =
        false;  // in_kernel, and counted as a member of ours already: an adoption is under way
    uint32_t events =
        0;  // interest and EPOLLET/EPOLLONESHOT/EPOLLEXCLUSIVE; interest bits 0 after a one-shot fired
    uint64_t data = 0;
};

// The member's readiness changed (Watch::notify): queues the item and wakes who waits on its set. Called under the member's
// Watch lock.
void epoll_item_changed(EpollItem& item, uint32_t events);

class Epoll final : public Pollable {
  public:
    static Epoll* create();  // null: no memory
    static void destroy(Epoll* epoll);

    uint32_t poll_events() override;  // EPOLLIN when something of ours is ready
    // Those of all members it has had: it goes on looking there.
    uint64_t lanes() const override { return lanes_.load(std::memory_order_acquire); }
    // A member has come to rings of another lane: its sets, and who waits on them, look there, too.
    static void follow_lanes(Pollable& member);

    // op on a member of ours; 0 or a positive errno.
    int control(int op, int fd, Pollable& member, const epoll_event* event);
    // A member became the kernel's: its memberships move into the kernel set. `epfd` is any descriptor of this set.
    // `keep`: the member may come back.
    static void move_to_kernel(Pollable& member, bool keep);
    // ---- Members in the kernel set that may be adopted. The member's control lock is held.
    // epoll_ctl on the kernel set, noted here; 0 or a positive errno.
    int control_in_kernel(int op, int fd, Pollable& member, epoll_event* event);
    // First step of an adoption: false, and nothing changed, when a set cannot follow: a thread is asleep in the kernel set
    // alone, or a membership is one-shot or exclusive, whose state only the kernel knows.
    static bool prepare_from_kernel(Pollable& member);
    static void stay_in_kernel(Pollable& member);  // undo of that
    // The same for one that is called back later: threads that are asleep in the kernel set alone come back first, and wait
    // here from then on. May be repeated for memberships that are new.
    static bool watch_in_kernel(Pollable& member);
    // Second: out of the kernel sets. The member's watch.notify() follows once it is ready to answer.
    static void leave_kernel(Pollable& member);
    static void return_to_kernel(Pollable& member);  // undo of that
    void forget_locks_in_child() override;
    void forget_waits_in_child();
    void unpin_in_kernel();
    // Takes the library's own event out of what a wait on the kernel set gave; how many are left.
    static int without_call(epoll_event* events, int n);
    int past_call(epoll_event* events,
                  int n);  // the same for who waits here; ends a call that nobody follows
    // The last descriptor of a member was closed: its memberships vanish.
    static void forget_member(Pollable& member);

    // Each member once, with no lock held; fn may take the member out.
    template <class Fn>
    void for_each_member(Fn&& fn) {
        for (uint32_t left = item_count_.load(std::memory_order_relaxed); left > 0; left--) {
            Pollable* member;
            {
                SpinGuard guard(ctl_lock_);
                EpollItem* item = members_.front();
                if (item == nullptr) return;
                members_.rotate();
                member = item->member;
            }
            fn(*member);
        }
    }

    // Writes up to `max` ready events of ours; applies LT, ET and one-shot. How many, or -EFAULT: some are ready and the
    // program's array cannot be written to; they stay ready.
    int collect(epoll_event* out, int max);
    Outcome wait(int epfd, epoll_event* out, int max, const timespec* timeout,
                 const sigset_t* mask);

    // The same in the order in which what is there to read arrived (epoll_order.h). EINVAL: a ready member is edge-triggered or
    // one-shot, and would be told of once although it was not listed.
    Outcome wait_in_order(int epfd, epoll_event* out, int max, const timespec* timeout,
                          OrderSink& sink);
    // All that are ready, each with a reference that is the caller's; nothing is taken off. 0, or -EINVAL as above.
    int list_ready(std::vector<ReadyMember>& out);

    void kernel_member_added() { has_kernel_members_.store(true, std::memory_order_relaxed); }
    bool has_kernel_members() const { return has_kernel_members_.load(std::memory_order_relaxed); }
    bool has_members() const { return member_count_.load(std::memory_order_relaxed) != 0; }
    void publish_counts();   // for viewers
    void dump(LogLevel at);  // its state into the log
    void set_fd(int fd) { fd_.store(fd, std::memory_order_relaxed); }
    int fd() const { return fd_.load(std::memory_order_relaxed); }
    void descriptor_closed(
        int closed);  // another one of the set, if there is one, stands in for it

  private:
    friend void epoll_item_changed(EpollItem& item, uint32_t events);
    Epoll() : Pollable(ObjectKind::epoll) {}
    // False: *kernel sends the call to the kernel set.
    bool may_wait_here(int max, Outcome* kernel);
    Outcome wait_for(EpollTarget& target, const timespec* timeout, const sigset_t* mask);
    EpollItem* find(Pollable& member, int fd);
    EpollItem* make_item(Pollable& member, int fd, const epoll_event& event, bool in_kernel);
    static void to_kernel_item(EpollItem& item);
    void take_down(EpollItem* item);               // the item is out of the member's Watch already
    bool queue(EpollItem& item, uint32_t events);  // false: not what the item is interested in
    void call_kernel_waits();
    void end_call();
    void add_lanes(uint64_t lanes);

    SpinLock ctl_lock_;
    List<EpollItem, &EpollItem::member_hook> members_;
    SpinLock ready_lock_;
    List<EpollItem, &EpollItem::ready_hook> ready_;
    std::atomic<uint64_t> lanes_{0};
    std::atomic<uint32_t> member_count_{0};  // served here
    std::atomic<uint32_t> item_count_{0};    // those and the ones in the kernel set
    std::atomic<uint32_t> kernel_waits_{0};  // threads that were sent to the kernel set alone
    std::atomic<uint32_t> lost_waits_{0};    // of these, known to have gone without a word
    std::atomic<bool> calling_{false};  // they are being called back: the call is in the kernel set
    std::atomic<int64_t> called_at_ns_{0};
    std::atomic<bool> has_kernel_members_{false};
    std::atomic<int> fd_{-1};
    std::atomic<bool> in_order_{false};  // somebody has waited in order
    std::atomic<OrderMemory*> order_memory_{nullptr};
    SpinGovernor governor_;
    ReadyCounts ready_counts_;
    stats::RowHandle row_;
};

void epoll_forget_in_child();  // locks of the record stores may be held by threads that do not exist in the child

}  // namespace vma::sock
