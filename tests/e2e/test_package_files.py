"""What the packages have in them, Debian's and those of the RPM spec, by their own tools."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from debian_root import TREE, do, make_packages
from netns import REPO, library

# The machine for which the tree is built: what Debian and readelf call it, and the folder of its libraries.
MACHINE = re.search(r"Machine: +(.*)", do("readelf", "-h", library())).group(1)
ARCHITECTURE = {"Advanced Micro Devices X86-64": "amd64", "AArch64": "arm64"}[MACHINE]
LIBRARIES = f"/usr/lib/{do('dpkg-architecture', f'-a{ARCHITECTURE}', '-q', 'DEB_HOST_MULTIARCH').strip()}"
MAN = "/usr/share/man"
# Files of each package but those of its folder in /usr/share/doc.
FILES = {
    "libvma": {"/etc/libvma.conf", "/etc/security/limits.d/30-libvma.conf", f"{LIBRARIES}/libvma.so", f"{LIBRARIES}/libvma.so.10",
               f"{LIBRARIES}/libvma.so.10.0.0", *(f"{LIBRARIES}/libvma-debug.so{end}" for end in ("", ".10", ".10.0.0")),
               f"{MAN}/man5/libvma.conf.5.gz", f"{MAN}/man7/libvma.7.gz"},
    "libvma-dev": {*(f"/usr/include/mellanox/{name}.h" for name in ("vma_extra", "vma_poll_group", "xlio")),
                   f"{LIBRARIES}/libvma.a", f"{LIBRARIES}/pkgconfig/libvma.pc",
                   *(f"{LIBRARIES}/cmake/libvma/libvma-config{part}.cmake" for part in ("", "-relwithdebinfo", "-version"))},
    "libvma-utils": {"/usr/bin/vma_stats", "/usr/bin/vma_capture", f"{LIBRARIES}/wireshark/extcap/vma_capture",
                     f"{MAN}/man1/vma_stats.1.gz", f"{MAN}/man1/vma_capture.1.gz"},
    "libvma-softhca": {"/usr/bin/softhca_port", "/usr/bin/softhca_ctl", f"{MAN}/man1/softhca_port.1.gz", f"{MAN}/man1/softhca_ctl.1.gz",
                       f"{MAN}/man7/softhca.7.gz",
                       *(f"{LIBRARIES}/libvma-softhca/lib{name}.so.1" for name in ("ibverbs", "mlx5", "efa"))},
    "vmad": {"/usr/sbin/vmad", "/etc/vmad.conf", "/usr/lib/systemd/system/vmad.service",
             "/usr/lib/systemd/system/vmad.socket", "/usr/lib/sysusers.d/vmad.conf",
             f"{MAN}/man5/vmad.conf.5.gz", f"{MAN}/man8/vmad.8.gz"},
}
CONFIGURATION = {"libvma": {"/etc/libvma.conf", "/etc/security/limits.d/30-libvma.conf"}, "vmad": {"/etc/vmad.conf"}}
HARDENED = {"/usr/sbin/vmad", "/usr/bin/vma_stats", "/usr/bin/vma_capture"}  # with a stack protector and checked calls
NOTHING_TO_CHECK = {"/usr/bin/vma_capture"}  # has no calls that are


def text_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def listed(files):
    return sorted(f"{package}: {name}" for package, names in files.items() for name in names)


class Folder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="vt-packages-"))

    def files(self, root, besides=r"/usr/share/(doc|lintian)/"):
        """Of an unpacked package, as they will be named."""
        found = (os.path.join(here[len(root):], name) for here, _, names in os.walk(root) for name in names)
        return {name for name in found if not re.match(besides, name)}


class Debian(Folder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.roots, cls.debs = {}, {}
        for deb in make_packages(cls.folder):
            package = os.path.basename(deb).split("_")[0]
            cls.debs[package], cls.roots[package] = deb, f"{cls.folder}/{package}"
            do("dpkg-deb", "-x", deb, cls.roots[package])

    def test_files(self):
        self.assertEqual(listed({package: self.files(root) for package, root in self.roots.items()}), listed(FILES))
        for package, root in self.roots.items():
            with self.subTest(package=package):
                documents = os.listdir(f"{root}/usr/share/doc/{package}")
                self.assertLessEqual({"changelog.gz", "copyright"}, set(documents))
                self.assertEqual(do("dpkg-deb", "-f", self.debs[package], "Version").strip(), "10.0.0")
                self.assertEqual(do("dpkg-deb", "-f", self.debs[package], "Architecture").strip(), ARCHITECTURE)
        runtime = self.roots["libvma"] + LIBRARIES
        self.assertEqual(os.readlink(f"{runtime}/libvma.so"), "libvma.so.10")
        self.assertIn("soname: [libvma.so.10]", do("readelf", "-d", f"{runtime}/libvma.so.10.0.0"))

    def test_depends(self):
        """By what the libraries of that machine say of themselves."""
        for package, wanted in (("libvma", r"libc6 \(>= 2\.3\d\)"), ("vmad", r"libc6 \(>= 2\.3\d\)"),
                                ("libvma-utils", r"libpcap0\.8 \(>= .*libstdc\+\+6 \(>= "), ("libvma-softhca", r"libc6 \(>= ")):
            with self.subTest(package=package):
                self.assertRegex(do("dpkg-deb", "-f", self.debs[package], "Depends"), wanted)

    def test_lintian(self):
        do("lintian", "--allow-root", "--fail-on", "error,warning", *self.debs.values())

    def test_configuration(self):
        for package, root in self.roots.items():
            with self.subTest(package=package):
                done = subprocess.run(["dpkg-deb", "-I", self.debs[package], "conffiles"], capture_output=True, text=True, check=False)
                self.assertEqual(set(done.stdout.split()), CONFIGURATION.get(package, set()))
        limits = text_of(self.roots["libvma"] + "/etc/security/limits.d/30-libvma.conf")
        self.assertEqual(re.findall(r"^[^#\s].*$", limits, re.M), ["*       -       memlock         unlimited",
                                                                   "root    -       memlock         unlimited"])
        # What makes a group of it is e2e.units.Units.
        self.assertEqual(text_of(self.roots["vmad"] + "/usr/lib/sysusers.d/vmad.conf"), "g vma - -\n")

    def test_a_page_for_each_program_and_file(self):
        for package, files in FILES.items():
            pages = {os.path.basename(name) for name in files if name.startswith(MAN)}
            for name in files:
                section = {"/usr/bin": 1, "/usr/sbin": 8, "/etc": 5}.get(os.path.dirname(name))
                if section:
                    self.assertIn(f"{os.path.basename(name)}.{section}.gz", pages, package)
        self.assertIn(f"{MAN}/man7/libvma.7.gz", FILES["libvma"])

    def test_rights(self):
        for package, root in self.roots.items():
            for line in do("dpkg-deb", "-c", self.debs[package]).splitlines():
                mode, owner = line.split()[:2]
                with self.subTest(line=line):
                    self.assertEqual(owner, "root/root")
                    self.assertIn(mode, ("drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--", "lrwxrwxrwx"))

    def programs(self):
        """ELF files, by the path that they will have."""
        for package, root in self.roots.items():
            for name in self.files(root):
                path = root + name
                if not os.path.islink(path):
                    with open(path, "rb") as f:
                        if f.read(4) == b"\x7fELF":
                            yield package, name, path

    def test_hardening(self):
        seen = set()
        for _, name, path in self.programs():
            with self.subTest(name=name):
                seen.add(name)
                headers = do("readelf", "-hldW", path)
                self.assertIn(MACHINE, headers)
                for wanted in (r"Type: +DYN", r"GNU_RELRO", r"GNU_STACK .* RW +0x", r"FLAGS_1\).*\bNOW\b"):
                    self.assertRegex(headers, wanted)
                self.assertNotIn("TEXTREL", headers)
                if name in HARDENED:
                    calls = set(re.findall(r" U (__\w+_chk\w*)", do("nm", "-D", "--undefined-only", path)))
                    self.assertIn("__stack_chk_fail", calls)
                    self.assertEqual(any(call.endswith("_chk") for call in calls), name not in NOTHING_TO_CHECK, calls)
        self.assertLess(HARDENED, seen)

    def test_debug_symbols(self):
        """In packages of their own, found by what the programs say that they were built as."""
        seen = 0
        for package, name, path in self.programs():
            with self.subTest(name=name):
                self.assertNotIn(".debug_", do("readelf", "-SW", path))
                build = re.search(r"Build ID: (\w{2})(\w+)", do("readelf", "-n", path))
                apart = f"{self.folder}/{package}-dbgsym"
                if not os.path.isdir(apart):
                    do("dpkg-deb", "-x", glob.glob(f"{self.folder}/{package}-dbgsym_*.ddeb")[0], apart)
                symbols = f"{apart}/usr/lib/debug/.build-id/{build.group(1)}/{build.group(2)}.debug"
                self.assertRegex(do("readelf", "-SW", symbols), r"\.debug_line +PROGBITS")
                seen += 1
        self.assertGreater(seen, 6)


class Rpm(Folder):
    def test_spec(self):
        """Built from the spec with the programs of this tree: the same files as Debian's packages, and a script that runs vmad's
        units. Of the tools that Fedora has and Debian's rpm has not, the macros are said here."""
        source = f"{self.folder}/source/libvma-10.0.0"
        os.makedirs(source)
        shutil.copy(f"{REPO}/LICENSE", source)
        do("tar", "-C", os.path.dirname(source), "-czf", f"{self.folder}/libvma-10.0.0.tar.gz", "libvma-10.0.0")
        defined = {"_topdir": self.folder, "_sourcedir": self.folder, "_libdir": LIBRARIES, "_sysconfdir": "/etc",
                   "debug_package": "%{nil}", "_build_id_links": "none", "cmake(-)": ":", "cmake_build": "%{nil}",
                   "cmake_install": f"DESTDIR=%{{buildroot}} cmake --install {TREE}",
                   "systemd_post()": "echo post %*", "systemd_preun()": "echo preun %*",
                   "systemd_postun_with_restart()": "echo postun %*", "autosetup": "%setup -q"}
        out = do("rpmbuild", "-bb", "--nodeps", *(f"--define={k} {v}" for k, v in defined.items()), f"{REPO}/packaging/libvma.spec")
        names = {"libvma-devel": "libvma-dev"}  # what Debian calls it
        built, scripts = {}, {}
        for rpm in glob.glob(f"{self.folder}/RPMS/*/*.rpm"):
            name = do("rpm", "-qp", "--queryformat=%{name}", rpm)
            flags = do("rpm", "-qp", "--queryformat=[%{filenames} %{filemodes:perms}\n]", rpm)
            files = (line.split() for line in flags.splitlines())
            built[names.get(name, name)] = {path for path, mode in files
                                            if mode[0] != "d" and not re.match(r"/usr/share/(doc|licenses)/", path)}
            scripts[name] = do("rpm", "-qp", "--scripts", rpm)
        self.assertEqual(listed(built), listed(FILES), out)
        for line in ("groupadd --system vma", "echo post vmad.socket vmad.service", "echo preun vmad.socket vmad.service",
                     "echo postun vmad.service"):
            self.assertIn(line, scripts["vmad"])


if __name__ == "__main__":
    case.main()
