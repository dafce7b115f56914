// One exported function of a library that stands in for Debian's.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>

#define EXPORTED extern "C" __attribute__((visibility("default")))
