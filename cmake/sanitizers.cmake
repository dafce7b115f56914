# VMA_SANITIZE=address,undefined | thread: instruments every target of the build tree. Sanitizers are for the in-process
# tests; libvma.so itself is preloaded only from uninstrumented trees.
set(VMA_SANITIZE "" CACHE STRING "sanitizers, comma separated")
option(VMA_FUZZ "build the libFuzzer targets (clang)" OFF)
option(VMA_COVERAGE "instrument for coverage" OFF)
if(VMA_SANITIZE)
    add_compile_options(-fsanitize=${VMA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${VMA_SANITIZE})
endif()
if(VMA_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(VMA_COVERAGE)
    add_compile_options(--coverage -fprofile-update=atomic) # counters of several threads
    add_link_options(--coverage)
endif()
