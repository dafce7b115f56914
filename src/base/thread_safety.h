// Clang's thread-safety attributes (clang.llvm.org/docs/ThreadSafetyAnalysis.html, -Wthread-safety); nothing for g++.
#pragma once

#if defined(__clang__)
#define VMA_TSA(x) __attribute__((x))
#else
#define VMA_TSA(x)
#endif

#define VMA_CAPABILITY(name) VMA_TSA(capability(name))  // a lock class
#define VMA_SCOPED_CAPABILITY VMA_TSA(scoped_lockable)  // an RAII holder of one
#define VMA_GUARDED_BY(lock) VMA_TSA(guarded_by(lock))  // a member that needs the lock
#define VMA_PT_GUARDED_BY(lock) VMA_TSA(pt_guarded_by(lock))
#define VMA_REQUIRES(...) VMA_TSA(requires_capability(__VA_ARGS__))
#define VMA_EXCLUDES(...) VMA_TSA(locks_excluded(__VA_ARGS__))
#define VMA_ACQUIRE(...) VMA_TSA(acquire_capability(__VA_ARGS__))
#define VMA_TRY_ACQUIRE(...) VMA_TSA(try_acquire_capability(__VA_ARGS__))
#define VMA_RELEASE(...) VMA_TSA(release_capability(__VA_ARGS__))
#define VMA_ASSERT_CAPABILITY(...) VMA_TSA(assert_capability(__VA_ARGS__))
#define VMA_NO_THREAD_SAFETY_ANALYSIS VMA_TSA(no_thread_safety_analysis)
