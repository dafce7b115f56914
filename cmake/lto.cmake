# Link-time optimisation of the layers, for libvma.so and for what counts its instructions: a fifth less of them on the way of a
# segment (docs/decisions/0029-hot-path.md). The objects hold both forms, so that everything else links them as they are, and fast.
#
# The hooks' own files are left out: their frames are unwound by pthread_cancel and must not get cleanups inlined
# (src/intercept/CMakeLists.txt).
set(lto OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_BUILD_TYPE STREQUAL RelWithDebInfo AND NOT VMA_SANITIZE AND NOT VMA_COVERAGE)
    set(lto ON)
endif()
option(VMA_LTO "optimise libvma.so at link time" ${lto})
if(VMA_LTO)
    # gcc takes the plugin of its linker when it sees the first of them, so the targets that want it must not have this one.
    add_link_options($<$<NOT:$<BOOL:$<TARGET_PROPERTY:VMA_LTO_LINK>>>:-fno-lto>)
endif()

function(vma_lto_compile target)
    if(VMA_LTO)
        target_compile_options(${target} PRIVATE -flto=auto -ffat-lto-objects)
    endif()
endfunction()

function(vma_lto_link target)
    if(VMA_LTO)
        set_target_properties(${target} PROPERTIES VMA_LTO_LINK ON)
        target_link_options(${target} PRIVATE -flto=auto -ftls-model=initial-exec)
    endif()
endfunction()
