# A layer is a folder of src/ built as one static library; its LINKS list is the include rule (ARCHITECTURE.md), which
# ci/check_layers.py checks over the #include lines. Files are found by glob so that adding one needs no edit here.
function(vma_layer name)
    cmake_parse_arguments(ARG "" "" "LINKS" ${ARGN})
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
    if(NOT sources)
        add_library(vma_${name} INTERFACE)
        set(scope INTERFACE)
    else()
        add_library(vma_${name} STATIC ${sources})
        set(scope PUBLIC)
        vma_lto_compile(vma_${name})
    endif()
    target_include_directories(vma_${name} ${scope} ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(vma_${name} ${scope} vma_flags)
    foreach(dep ${ARG_LINKS})
        target_link_libraries(vma_${name} ${scope} vma_${dep})
    endforeach()
    if(EXISTS ${CMAKE_SOURCE_DIR}/src/${name}/layer.cmake)
        include(${CMAKE_SOURCE_DIR}/src/${name}/layer.cmake)
    endif()
endfunction()

# A test folder: one gtest binary per folder of tests/<kind>/<folder>. Its ctest label is LABELS, or else the kind; one only,
# because gtest_discover_tests flattens a list of labels into the properties that follow.
function(vma_test_folder kind folder)
    cmake_parse_arguments(ARG "" "LABELS" "LINKS" ${ARGN})
    if(NOT ARG_LABELS)
        set(ARG_LABELS ${kind})
    endif()
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc)
    if(NOT sources)
        return()
    endif()
    set(target ${kind}_${folder})
    add_executable(${target} ${sources})
    target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${target} PRIVATE vma_flags ${ARG_LINKS} GTest::gmock GTest::gtest_main)
    if(NOT kind STREQUAL sim) # hours of virtual time
        target_compile_options(${target} PRIVATE -O0) # half the compiler's time for GoogleTest's templates
    endif()
    set(seconds 120)
    if(CMAKE_CROSSCOMPILING) # qemu-user is ten to twenty times slower
        set(seconds 1800)
    endif()
    gtest_discover_tests(${target} TEST_PREFIX "${kind}." PROPERTIES LABELS ${ARG_LABELS} TIMEOUT ${seconds}
        DISCOVERY_TIMEOUT 60)
endfunction()
