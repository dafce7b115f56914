target_include_directories(vma_extra PUBLIC ${CMAKE_SOURCE_DIR}/include)
