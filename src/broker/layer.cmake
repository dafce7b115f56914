# Where the packages install vmad, as seen from the folder of the installed library.
include(GNUInstallDirs)
file(RELATIVE_PATH vmad_from_library ${CMAKE_INSTALL_FULL_LIBDIR} ${CMAKE_INSTALL_FULL_SBINDIR}/vmad)
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/broker/spawn.cc PROPERTIES
    COMPILE_DEFINITIONS VMA_INSTALLED_BROKER="/${vmad_from_library}")
