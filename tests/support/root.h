// Tests that only root can run. Root is expected to have what they need: a capability or a kernel feature that is missing
// then is a failure of the test. Anybody else skips them, which ctest and the last line of ./dev test count and name.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

// In a test body or SetUp().
#define NEEDS_ROOT(what) \
    if (geteuid() != 0) GTEST_SKIP() << "NOT RUN: " what " needs root"
