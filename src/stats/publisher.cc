// Rows of the page.
#include "stats/publisher.h"

#include <sys/stat.h>

#include <cstring>

#include "base/sys.h"
#include "stats/publisher_state.h"

namespace vma::stats {
namespace {

constexpr uint32_t kMostListed = 65536;  // rows of a listing

bool has_place(const PublisherState& s, const RowHandle& handle) {
    return handle.row != UINT32_MAX && handle.epoch == s.epoch && s.page.exists();
}

// A free row for `handle`, which the caller writes. False: no room.
bool take_place(PublisherState& s, Table& table, RowHandle& handle) {
    handle = {table.take(s.page), s.epoch};
    return handle.row != UINT32_MAX;
}

template <class Row>
void give_place(PublisherState& s, Table& table, RowHandle& handle) {
    if (has_place(s, handle)) {
        table.write<Row>(s.page, handle.row, [](Row& row) {
            const uint32_t seq = row.seq;
            row = {};
            row.seq = seq;
        });
        table.give_back(handle.row);
    }
    handle = {};
}

Table& table_of(PublisherState& s, const LatencyRow*) { return s.latencies; }
Table& table_of(PublisherState& s, const OptionRow*) { return s.options; }
Table& table_of(PublisherState& s, const RouteRow*) { return s.routes; }
Table& table_of(PublisherState& s, const NeighborRow*) { return s.neighbors; }
Table& table_of(PublisherState& s, const FlowRow*) { return s.flows; }
Table& table_of(PublisherState& s, const MembershipRow*) { return s.memberships; }
Table& table_of(PublisherState& s, const RuleRow*) { return s.rules; }

// What the kernel calls a socket.
struct SocketNames {
    uint64_t inode = 0, cookie = 0;
};
SocketNames names_of(const SocketIdentity& id) {
    SocketNames names{id.inode, id.cookie};
    struct stat st;
    if (names.inode == 0 && sys::raw(SYS_fstat, id.fd, sys::ptr(&st)) == 0) names.inode = st.st_ino;
    socklen_t len = sizeof names.cookie;
    if (names.cookie == 0) sys::getsockopt(id.fd, SOL_SOCKET, SO_COOKIE, &names.cookie, &len);
    return names;
}

// All of it but what names_of() finds out.
bool same_but_names(const SocketIdentity& a, const SocketIdentity& b) {
    constexpr size_t kNames = offsetof(SocketIdentity, inode),
                     kRest = offsetof(SocketIdentity, rings);
    static_assert(kRest == kNames + sizeof(SocketNames));
    const auto *x = reinterpret_cast<const char*>(&a), *y = reinterpret_cast<const char*>(&b);
    return std::memcmp(x, y, kNames) == 0 &&
           std::memcmp(x + kRest, y + kRest, sizeof a - kRest) == 0;
}

}  // namespace

void set_socket(RowHandle& handle, const SocketIdentity& identity, const SocketNumbers* numbers,
                const TcpNumbers* tcp) {
    int error = 0;
    {
        const LockedPage page;
        PublisherState& s = page.state;
        if (have_page(s, &error)) {
            if (!has_place(s, handle) && !take_place(s, s.sockets, handle)) return;
            const Table::Place place = s.sockets.place_of(handle.row);
            auto& row = s.sockets.row<SocketRow>(s.page, place);
            bool changed = false;
            if (row.in_use == 0 || !same_but_names(row.id, identity)) {
                const SocketNames names =
                    row.in_use ? SocketNames{row.id.inode, row.id.cookie} : names_of(identity);
                row.in_use = 1;
                row.id = identity;
                row.id.inode = names.inode;
                row.id.cookie = names.cookie;
                changed = true;
            }
            if (numbers && (!same(row.numbers, *numbers) || (tcp && !same(row.tcp, *tcp)))) {
                row.numbers = *numbers;
                if (tcp) row.tcp = *tcp;
                changed = true;
            }
            if (numbers && s.zeroing && s.zero_fds.has(row.id.fd)) {
                row.base = *numbers;
                changed = true;
            }
            if (changed) s.page.show_row(place.part, place.row);
        }
    }
    if (error) say_why_there_is_no_page(error);
}

void remove_socket(RowHandle& handle) {
    const LockedPage page;
    PublisherState& s = page.state;
    give_place<SocketRow>(s, s.sockets, handle);
}

bool set_ring(unsigned index, const RingIdentity& id, const RingNumbers& numbers,
              const DropCounters& drops) {
    const LockedPage page;
    PublisherState& s = page.state;
    if (!s.page.exists()) return false;
    while (index >= s.rings.capacity())
        if (!s.rings.grow(s.page)) return false;
    s.rings.write<RingRow>(s.page, index, [&](RingRow& row) {
        row.in_use = 1;
        row.id = id;
        row.numbers = numbers;
        if (s.zeroing) row.base = numbers;
        std::memcpy(row.drops, drops.n, sizeof drops.n);
    });
    return true;
}

void set_wait(RowHandle& handle, const WaitIdentity& id, const WaitNumbers& numbers) {
    const LockedPage page;
    PublisherState& s = page.state;
    if (!s.page.exists()) return;
    if (!has_place(s, handle) && !take_place(s, s.waits, handle)) return;
    s.waits.write<WaitRow>(s.page, handle.row, [&](WaitRow& row) {
        row.in_use = 1;
        row.id = id;
        row.numbers = numbers;
        if (s.zeroing) row.base = numbers;
    });
}

void remove_wait(RowHandle& handle) {
    const LockedPage page;
    PublisherState& s = page.state;
    give_place<WaitRow>(s, s.waits, handle);
}

template <class Row>
Listing<Row>::Listing() {
    const LockedPage page;
    PublisherState& s = page.state;
    if (!s.page.exists()) return;
    uint32_t& cut = s.page.header().listing_cut;
    s.page.put(cut, cut & ~list_bit(table_of(s, static_cast<Row*>(nullptr)).kind()));
}

template <class Row>
void Listing<Row>::add(const Row& row) {
    const LockedPage page;
    PublisherState& s = page.state;
    if (!s.page.exists()) return;
    Table& table = table_of(s, &row);
    if (next_ == kMostListed || (next_ == table.capacity() && !table.grow(s.page))) {
        uint32_t& cut = s.page.header().listing_cut;
        s.page.put(cut, cut | list_bit(table.kind()));
        return;
    }
    table.write<Row>(s.page, next_++, [&](Row& to) {
        const uint32_t seq = to.seq;
        to = row;
        to.seq = seq;
        to.in_use = 1;
    });
}

template <class Row>
Listing<Row>::~Listing() {
    const LockedPage page;
    PublisherState& s = page.state;
    if (!s.page.exists()) return;
    Table& table = table_of(s, static_cast<Row*>(nullptr));
    for (; next_ < table.capacity(); next_++)
        if (table.row<Row>(s.page, table.place_of(next_)).in_use)
            table.write<Row>(s.page, next_, [](Row& to) { to.in_use = 0; });
}

template class Listing<LatencyRow>;
template class Listing<OptionRow>;
template class Listing<RouteRow>;
template class Listing<NeighborRow>;
template class Listing<FlowRow>;
template class Listing<MembershipRow>;
template class Listing<RuleRow>;

}  // namespace vma::stats
