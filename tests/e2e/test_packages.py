"""The Debian packages on a Debian that has nothing else: made of this tree, installed by apt with what they depend on into a root
made by debootstrap, used from /usr between two network namespaces, purged without a trace. Downloads about 60 MB."""

import os
import re
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import sockperf
from debian_root import RootCase, do

PACKAGES = ["libvma", "libvma-dev", "libvma-softhca", "libvma-utils", "vmad"]
LIBRARIES = "usr/lib/x86_64-linux-gnu"
PRELOAD = {"LD_PRELOAD": "libvma.so"}  # by its name: the loader finds it in the root's /usr
# What apt and dpkg write for themselves, and the copy that groupadd makes of the former state: the group vma stays, as Debian has it.
# run/adduser is the lock of adduser, a dependency that comes and goes with ours.
NOT_COMPARED = ("etc/gshadow-", "proc", "sys", "dev", "packages", "run/adduser", "var/cache", "var/log", "var/lib/apt", "var/lib/dpkg")


class Installed:
    """A namespace whose programs are those of the root."""

    def __init__(self, space, enter):
        self._space, self._enter = space, enter
        self.brokers = []

    def __getattr__(self, name):
        return getattr(self._space, name)

    def start(self, argv, **options):
        return self._space.start(argv, prefix=self._enter, **options)

    def run(self, argv, **options):
        return self._space.run(argv, prefix=self._enter, **options)

    def wait_served(self, port, process, timeout=10.0, viewer=None):
        """By the viewer of the packages, whatever is given."""
        self._space.wait_served(port, process, timeout, [*self._enter, "/usr/bin/vma_stats"])
        programs = (os.readlink(f"/proc/{pid}/exe") for pid in self.pids())
        self.brokers += [program for program in programs if program.endswith("/vmad")]


class Packages(RootCase):
    def files(self):
        """Every file of the root with the state of each package."""
        found = set()
        for folder, folders, names in os.walk(self.root):
            here = os.path.relpath(folder, self.root)
            kept = lambda name, here=here: os.path.normpath(os.path.join(here, name)) not in NOT_COMPARED
            folders[:] = filter(kept, folders)
            found.update(os.path.normpath(os.path.join(here, name)) for name in filter(kept, folders + names))
        return found | set(self.inside("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n").splitlines())

    def test_install_use_and_purge(self):
        self.bootstrap()
        before = self.files()
        self.inside("apt-get", "-qy", "--no-install-recommends", "install", *self.here())
        for protocol in ("tcp", "udp"):
            with self.subTest(protocol=protocol):
                self.ping_pong(protocol)
        with self.subTest("devices"):
            self.assertEqual(self.inside("env", f"LD_LIBRARY_PATH=/{LIBRARIES}/libvma-softhca", "ldd",
                                         "/usr/bin/softhca_port").count("/libvma-softhca/libibverbs.so.1"), 1)
        with self.subTest("development"):
            self.build_a_program()
        self.inside("apt-get", "-qy", "purge", "--auto-remove", *PACKAGES)
        after = self.files()
        self.assertEqual((sorted(after - before), sorted(before - after)), ([], []))

    def ping_pong(self, protocol):
        """Both ends from /usr, past the kernel; the server's broker is that of the package."""
        client, server = (Installed(space, self.enter) for space in (self.a, self.b))
        result = sockperf.run_pair(client, server, "pp", protocol, client_env=PRELOAD, server_env=PRELOAD)
        self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
        self.assertGreater(result.answers, 1000, result.text)
        self.assertLess(result.kernel_in, case.SLACK, result.text)
        self.assertLess(result.client_kernel_in, case.SLACK, result.text)
        if protocol == "tcp":
            self.assertEqual(server.brokers, [f"{self.root}/usr/sbin/vmad"], result.text)

    def build_a_program(self):
        """One that is linked with the library, by pkg-config and by CMake, or has it in itself, out of the root."""
        with open(f"{self.made}/main.c", "w") as f:
            f.write("#include <mellanox/vma_extra.h>\n#include <mellanox/xlio.h>\n"
                    "int main(void) { return vma_get_api() == NULL || xlio_init(); }\n")
        with open(f"{self.made}/CMakeLists.txt", "w") as f:
            f.write("cmake_minimum_required(VERSION 3.25)\nproject(user C)\nfind_package(libvma 10 CONFIG REQUIRED)\n"
                    "add_executable(by_cmake main.c)\ntarget_link_libraries(by_cmake libvma::vma)\n")
        do("cmake", "-S", self.made, "-B", f"{self.made}/build", f"-Dlibvma_DIR={self.root}/{LIBRARIES}/cmake/libvma")
        do("cmake", "--build", f"{self.made}/build")
        words = do("env", f"PKG_CONFIG_SYSROOT_DIR={self.root}", f"PKG_CONFIG_LIBDIR={self.root}/{LIBRARIES}/pkgconfig",
                        "pkg-config", "--cflags", "--libs", "libvma").split()
        do("cc", f"{self.made}/main.c", "-o", f"{self.made}/by_pkg_config", *words)
        archive = [word if word != "-lvma" else "-l:libvma.a" for word in words]
        do("cc", f"{self.made}/main.c", "-o", f"{self.made}/by_archive", *archive, "-lstdc++", "-lm")
        for program, named in (("build/by_cmake", True), ("by_pkg_config", True), ("by_archive", False)):
            with self.subTest(program=program):
                shutil.copy(f"{self.made}/{program}", f"{self.root}/packages/program")
                self.assertEqual("[libvma.so.10]" in do("readelf", "-d", f"{self.made}/{program}"), named)
                self.assert_ok(self.a.run(["/packages/program"], prefix=self.enter))  # it has got the table of functions


if __name__ == "__main__":
    case.main()
