# Between the program and the library, as the hooks: see src/intercept/CMakeLists.txt.
target_compile_options(vma_extra PRIVATE -fno-exceptions -fasynchronous-unwind-tables)
target_include_directories(vma_extra PUBLIC ${CMAKE_SOURCE_DIR}/include)
