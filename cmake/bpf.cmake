# BPF programs: compiled with clang, turned into a light skeleton (a header that loads them with plain bpf(2) calls, so that
# nothing of libbpf is linked). Built the same for every preset: no sanitizer or coverage flag reaches them.
find_program(BPF_CLANG NAMES clang clang-14 clang-15 clang-16 REQUIRED)
find_program(BPFTOOL bpftool HINTS /usr/sbin /sbin REQUIRED)
set(bpf_dir ${CMAKE_BINARY_DIR}/bpf)
file(MAKE_DIRECTORY ${bpf_dir})
# bpf_object(NAME SOURCE): NAME.lskel.h
function(bpf_object name source)
    add_custom_command(
        OUTPUT ${bpf_dir}/${name}.lskel.h
        COMMAND ${BPF_CLANG} -target bpf -mcpu=v3 -g -O2 -Wall -Werror -I${CMAKE_SYSROOT}/usr/include/${CMAKE_LIBRARY_ARCHITECTURE}
                -I${CMAKE_SOURCE_DIR}/src/dev/packet -c ${CMAKE_SOURCE_DIR}/${source} -o ${bpf_dir}/${name}.o
        COMMAND ${BPFTOOL} gen skeleton -L ${bpf_dir}/${name}.o name ${name} > ${bpf_dir}/${name}.lskel.h
        DEPENDS ${CMAKE_SOURCE_DIR}/${source} ${CMAKE_SOURCE_DIR}/src/dev/packet/layout.h ${CMAKE_SOURCE_DIR}/src/dev/packet/flows.bpf.h
        VERBATIM)
endfunction()
bpf_object(packet_rx src/dev/packet/rx.bpf.c)
bpf_object(xdp_rx src/dev/xdp/xdp.bpf.c)
add_custom_target(packet_bpf DEPENDS ${bpf_dir}/packet_rx.lskel.h ${bpf_dir}/xdp_rx.lskel.h)
# The C files of the library: the skeletons are not C++.
add_library(vma_packet_programs OBJECT ${CMAKE_SOURCE_DIR}/src/dev/packet/programs.c ${CMAKE_SOURCE_DIR}/src/dev/xdp/programs.c)
target_include_directories(vma_packet_programs PRIVATE ${CMAKE_SOURCE_DIR}/src ${bpf_dir})
target_compile_options(vma_packet_programs PRIVATE -fvisibility=hidden)
add_dependencies(vma_packet_programs packet_bpf)
target_sources(vma_dev PRIVATE $<TARGET_OBJECTS:vma_packet_programs>)
