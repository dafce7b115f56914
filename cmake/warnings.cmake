# Warning flags of every target of ours; fatal when VMA_WERROR is on (presets dev and clang).
option(VMA_WERROR "treat warnings as errors" OFF)
add_library(vma_flags INTERFACE)
target_compile_options(vma_flags INTERFACE
    -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wundef
    -fvisibility=hidden -fvisibility-inlines-hidden -fno-strict-aliasing -fno-plt -fPIC
    $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>
    $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
    $<$<BOOL:${VMA_WERROR}>:-Werror>)
target_compile_definitions(vma_flags INTERFACE _GNU_SOURCE)
