#include "base/list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <vector>

#include "base/rng.h"

namespace vma {
namespace {

struct Item {
    int value = 0;
    ListHook first;
    ListHook second;  // an item may be in one list per hook
};
using FirstList = List<Item, &Item::first>;
using SecondList = List<Item, &Item::second>;

template <class L>
std::vector<int> forward(L& list) {
    std::vector<int> out;
    for (Item* i = list.front(); i; i = list.next(*i)) out.push_back(i->value);
    return out;
}
template <class L>
std::vector<int> backward(L& list) {
    std::vector<int> out;
    for (Item* i = list.back(); i; i = list.prev(*i)) out.push_back(i->value);
    return out;
}
using Values = std::vector<int>;

TEST(List, EmptyList) {
    FirstList list;
    EXPECT_TRUE(list.empty());
    EXPECT_EQ(list.front(), nullptr);
    EXPECT_EQ(list.back(), nullptr);
    EXPECT_EQ(list.pop_front(), nullptr);
}

TEST(List, PushInsertUnlinkAndOrderBothWays) {
    Item item[5];
    for (int i = 0; i < 5; ++i) item[i].value = i;
    FirstList list;
    list.push_back(item[1]);
    list.push_back(item[2]);
    list.push_front(item[0]);
    list.insert_after(item[2], item[4]);
    list.insert_after(item[2], item[3]);
    EXPECT_EQ(forward(list), (Values{0, 1, 2, 3, 4}));
    EXPECT_EQ(backward(list), (Values{4, 3, 2, 1, 0}));
    item[2].first.unlink();
    EXPECT_FALSE(item[2].first.linked());
    item[2].first.unlink();  // twice is harmless
    EXPECT_EQ(forward(list), (Values{0, 1, 3, 4}));
    EXPECT_EQ(list.pop_front(), &item[0]);
    EXPECT_FALSE(item[0].first.linked());
    EXPECT_EQ(list.back(), &item[4]);
    EXPECT_EQ(backward(list), (Values{4, 3, 1}));
}

TEST(List, HooksAreIndependent) {
    Item item[3];
    FirstList one;
    SecondList two;
    for (int i = 0; i < 3; ++i) {
        item[i].value = i;
        one.push_back(item[i]);
        two.push_front(item[i]);
    }
    item[1].first.unlink();
    EXPECT_EQ(forward(one), (Values{0, 2}));
    EXPECT_EQ(forward(two), (Values{2, 1, 0}));
}

TEST(List, SpliceMovesAllInOrder) {
    const struct { int left, right; } rows[] = {{0, 0}, {0, 2}, {2, 0}, {2, 3}};
    for (auto& row : rows) {
        Item item[5];
        FirstList a, b;
        Values expect;
        for (int i = 0; i < row.left + row.right; ++i) {
            item[i].value = i;
            expect.push_back(i);
            (i < row.left ? a : b).push_back(item[i]);
        }
        a.splice_back(b);
        EXPECT_TRUE(b.empty());
        EXPECT_EQ(forward(a), expect);
        Values reversed(expect.rbegin(), expect.rend());
        EXPECT_EQ(backward(a), reversed);
    }
}

TEST(List, RandomOperationsAgainstStdList) {
    const uint64_t seed = std::random_device{}();
    printf("seed %llu\n", static_cast<unsigned long long>(seed));
    Rng rng(seed);
    Item item[40];
    FirstList list;
    std::list<int> oracle;
    for (int i = 0; i < 40; ++i) item[i].value = i;
    for (int step = 0; step < 20000; ++step) {
        Item& it = item[rng.below(40)];
        Item& place = item[rng.below(40)];
        if (it.first.linked()) {
            it.first.unlink();
            oracle.remove(it.value);
        } else if (place.first.linked()) {
            list.insert_after(place, it);
            oracle.insert(std::next(std::find(oracle.begin(), oracle.end(), place.value)),
                          it.value);
        } else if (rng.chance(1, 2)) {
            list.push_back(it);
            oracle.push_back(it.value);
        } else {
            list.push_front(it);
            oracle.push_front(it.value);
        }
        ASSERT_EQ(forward(list), Values(oracle.begin(), oracle.end())) << "seed " << seed;
        ASSERT_EQ(backward(list), Values(oracle.rbegin(), oracle.rend())) << "seed " << seed;
    }
}

}  // namespace
}  // namespace vma
