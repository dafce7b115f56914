# Debian packages out of the build tree, one for each component.
set(debian ${CMAKE_CURRENT_SOURCE_DIR}/debian)
set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL runtime dev utils softhca vmad)
set(CPACK_PACKAGE_NAME libvma)
set(CPACK_PACKAGE_CONTACT "The libvma authors <libvma@example.org>")
set(CPACK_PACKAGING_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
# Each gets a package NAME-dbgsym: line tables for debuggers, profilers and core files. It strips the programs itself.
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# softhca_port needs the libibverbs of its own package, which no other package knows of.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/lib/softhca)
if(CMAKE_CROSSCOMPILING) # the other machine's name, its tools, its libraries and what dpkg would know of them there
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
    set(CPACK_OBJCOPY_EXECUTABLE ${CMAKE_OBJCOPY})
    set(CPACK_READELF_EXECUTABLE ${CMAKE_READELF})
    list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_SYSROOT}/lib/${CMAKE_LIBRARY_ARCHITECTURE}
        ${CMAKE_SYSROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
    set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_BINARY_DIR}/cross.cmake)
    file(WRITE ${CPACK_PROJECT_CONFIG_FILE} "set(ENV{DEB_HOST_ARCH} arm64)\nset(ENV{DPKG_ADMINDIR} ${CMAKE_SYSROOT}/var/lib/dpkg)\n")
endif()

# Copyright and changelog, which each package has, man pages, and the overrides of lintian that are named in debian/.
set(changelog ${CMAKE_CURRENT_BINARY_DIR}/changelog.gz)
add_custom_command(OUTPUT ${changelog} DEPENDS ${debian}/changelog
    COMMAND sh -c "gzip -9nc \"$1\" >\"$2\"" sh ${debian}/changelog ${changelog} VERBATIM)
add_custom_target(package_files ALL DEPENDS ${changelog} ${manuals})

# component, package, section, summary, the rest of the description.
function(vma_debian_package component package section summary text)
    install(FILES ${debian}/copyright ${changelog} DESTINATION ${docs}/${package} COMPONENT ${component})
    if(EXISTS ${debian}/${package}.lintian-overrides)
        install(FILES ${debian}/${package}.lintian-overrides DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/lintian/overrides
            RENAME ${package} COMPONENT ${component})
    endif()
    string(TOUPPER ${component} key)
    set(CPACK_DEBIAN_${key}_PACKAGE_NAME ${package} PARENT_SCOPE)
    set(CPACK_DEBIAN_${key}_PACKAGE_SECTION ${section} PARENT_SCOPE)
    set(CPACK_COMPONENT_${key}_DESCRIPTION "${summary}\n${text}" PARENT_SCOPE)
endfunction()

vma_debian_package(runtime libvma libs "TCP and UDP sockets of unmodified programs in user space"
"With LD_PRELOAD=libvma.so the TCP and UDP sockets of a program run in a
user-space stack on a network ring instead of in the kernel, on any network
interface. Each stays backed by a kernel socket: what the stack cannot do goes
on in the kernel, also in the middle of a connection.")
vma_debian_package(dev libvma-dev libdevel "functions of libvma beyond sockets (development files)"
"The headers mellanox/vma_extra.h and mellanox/xlio.h, a static library, and
what pkg-config and CMake need, for programs that ask the library for more
than sockets have.")
vma_debian_package(utils libvma-utils net "statistics and packets of programs that run with libvma"
"vma_stats shows which sockets of preloaded programs are accelerated, over
which ring, which are not and why, with counters of each. vma_capture writes
their packets as pcapng, by itself or out of Wireshark.")
vma_debian_package(softhca libvma-softhca net "RDMA device in software, for tests"
"A libibverbs whose devices are made of shared memory: programs for RDMA
devices run on it without hardware or drivers, and so does the verbs ring of
libvma.")
vma_debian_package(vmad vmad net "broker of libvma"
"libvma starts vmad for programs that give up their privileges, fork or are
killed: it moves their connections between user space and the kernel. As a
service it does the same for programs of ordinary users, by a policy.")

# Packages of VMA have the same names, so dpkg puts these in their place; this version moves files between them: vmad out of
# libvma, the name libvma.so into it.
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS "vmad (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS libvma-utils)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_BREAKS "libvma-dev (<< ${PROJECT_VERSION}~), libvma-utils (<< ${PROJECT_VERSION}~)")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_REPLACES "${CPACK_DEBIAN_RUNTIME_PACKAGE_BREAKS}")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${debian}/conffiles ${debian}/shlibs ${debian}/triggers)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libvma (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_VMAD_PACKAGE_BREAKS "libvma (<< ${PROJECT_VERSION}~), libvma-utils (<< ${PROJECT_VERSION}~)")
set(CPACK_DEBIAN_VMAD_PACKAGE_REPLACES "${CPACK_DEBIAN_VMAD_PACKAGE_BREAKS}")
set(CPACK_DEBIAN_VMAD_PACKAGE_DEPENDS passwd) # groupadd, where there is no systemd-sysusers
set(CPACK_DEBIAN_VMAD_PACKAGE_CONTROL_EXTRA ${debian}/vmad/conffiles ${debian}/vmad/postinst ${debian}/vmad/prerm
    ${debian}/vmad/postrm)
include(CPack)
