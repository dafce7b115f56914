"""Runs a command in a virtual machine with one of Debian's kernels, on top of this machine's own files: for tests that need drivers
or a kernel that the machine does not have.

    guest.py KERNEL COMMAND...       KERNEL: stable (Debian 12's, 6.1) or backports (with TCX); exits as the command does

The guest's root is the machine's, read-only by 9p, under a layer in memory: the very programs and the build tree, and what the command
writes is gone with the guest. Kernel and modules are Debian's package, verified by apt, kept in build/guest/ (remove a
folder there to get a newer one). The guest has two processors and four cards, eth0 to eth3: the first two are on one wire, the others
on another, with the offloads of virtio. Needs root and the packages that `./dev soak guest` installs; uses /dev/kvm where it can run
any kernel, else emulates, which is some ten times slower. VMA_* variables go with the command.
"""

import contextlib
import ctypes
import fcntl
import glob
import lzma
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from netns import REPO, Net  # noqa: E402

CACHE = os.path.join(REPO, "build/guest")
ARCHIVE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/"
SUITES = {"stable": ["debian bookworm main", "debian-security bookworm-security main"], "backports": ["debian bookworm-backports main"]}
BOOT_MODULES = ["9pnet_virtio", "9p", "overlay", "virtio_console", "virtio_net", "virtio_pci"]
PROCESSORS, MEMORY = 2, "3G"
TUNSETIFF, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x400454ca, 2, 0x1000, 0x4000  # linux/if_tun.h
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _do(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


class Kernel:
    """A kernel image of Debian's, its modules, and the root in memory that it boots with. Downloads what is not there yet."""

    def __init__(self, name):
        folder = os.path.join(CACHE, name)
        os.makedirs(CACHE, exist_ok=True)
        with open(os.path.join(CACHE, "lock"), "w") as lock:  # two tests may want it at once
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.isdir(folder):
                with tempfile.TemporaryDirectory(dir=CACHE) as work:
                    self._download(SUITES[name], work)
                    os.rename(os.path.join(work, "root"), folder)
        self.image, = glob.glob(f"{folder}/boot/vmlinuz-*")
        self.release = os.path.basename(self.image).removeprefix("vmlinuz-")
        self.modules = os.path.join(folder, "lib/modules", self.release)

    @staticmethod
    def _download(suites, work):
        for part in ("lists/partial", "cache/archives/partial"):
            os.makedirs(os.path.join(work, part))
        with open(os.path.join(work, "sources.list"), "w") as f:
            f.writelines(f"{ARCHIVE}{suite}\n" for suite in suites)
        options = {"Dir::Etc::SourceList": f"{work}/sources.list", "Dir::Etc::SourceParts": "/dev/null", "Dir::Etc::Preferences": "/dev/null",
                   "Dir::Etc::PreferencesParts": "/dev/null", "Dir::State::Lists": f"{work}/lists", "Dir::Cache": f"{work}/cache",
                   "APT::Sandbox::User": "root"}
        options = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        _do("apt-get", *options, "-q", "update")
        newest = _do("apt-cache", *options, "--no-all-versions", "show", "linux-image-amd64")
        package, = [line.split()[1] for line in newest.splitlines() if line.startswith("Depends:")]
        _do("apt-get", *options, "-q", "download", package, cwd=work)
        root = os.path.join(work, "root")
        _do("dpkg-deb", "--extract", *glob.glob(f"{work}/*.deb"), root)
        release, = os.listdir(os.path.join(root, "lib/modules"))
        _do("depmod", "-b", root, release)

    def _needed(self):
        """The files of BOOT_MODULES and of what they need, in an order in which they can be loaded."""
        with open(os.path.join(self.modules, "modules.dep")) as f:
            depends = {name: needs.split() for name, needs in (line.rstrip("\n").split(":") for line in f)}
        with open(os.path.join(self.modules, "modules.builtin")) as f:
            builtin = {os.path.basename(line.strip()) for line in f}
        files = []
        for module in BOOT_MODULES:
            if f"{module}.ko" in builtin:
                continue
            name, = [n for n in depends if os.path.basename(n).split(".")[0] == module]
            for file in [*reversed(depends[name]), name]:
                if file not in files:
                    files.append(file)
        return files

    def initramfs(self, work):
        """Path of an archive with busybox, guest_init.sh and the modules that the root needs; made in the folder `work`."""
        root, names = os.path.join(work, "initramfs"), []
        os.makedirs(os.path.join(root, "modules"))
        shutil.copy("/bin/busybox", root)
        shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest_init.sh"), os.path.join(root, "init"))
        os.chmod(os.path.join(root, "init"), 0o755)
        for file in self._needed():
            names.append(os.path.basename(file).removesuffix(".xz"))
            with (lzma.open if file.endswith(".xz") else open)(os.path.join(self.modules, file), "rb") as packed, \
                    open(os.path.join(root, "modules", names[-1]), "wb") as f:
                shutil.copyfileobj(packed, f)
        with open(os.path.join(root, "modules/order"), "w") as f:
            f.writelines(f"{name}\n" for name in names)
        archive = os.path.join(work, "initramfs.cpio")
        files = sorted(os.path.relpath(os.path.join(at, name), root) for at, folders, plain in os.walk(root) for name in folders + plain)
        with open(archive, "wb") as f:
            subprocess.run(["cpio", "--quiet", "--create", "--format=newc"], cwd=root, input="\n".join(files).encode(), stdout=f, check=True)
        return archive


def _tap(bridge, name):
    """A descriptor of a TAP interface with offloads, in the bridge of this thread's network namespace."""
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    _do("ip", "link", "set", name, "master", bridge, "up")
    return fd


def _cards():
    """Descriptors of four TAP interfaces, two on each of two bridges; the caller's thread is in a namespace for them."""
    fds = []
    for wire in range(2):
        bridge = f"wire{wire}"
        _do("ip", "link", "add", bridge, "type", "bridge", "mcast_snooping", "0")
        _do("ip", "link", "set", bridge, "up")
        fds += [_tap(bridge, f"n{2 * wire + i}") for i in range(2)]
    return fds


def _virtualizes():
    """Can KVM run any kernel here? kvm_pvm, of machines that are guests themselves, runs only those that know of it."""
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and any(os.path.isdir(f"/sys/module/{m}") for m in ("kvm_intel", "kvm_amd"))


def _end_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(name, command, limit=1800):
    """Runs the command in a guest; its output goes to ours. Its exit status; RuntimeError with the end of what the kernel said when
    there is none after `limit` seconds."""
    kernel = Kernel(name)
    with tempfile.TemporaryDirectory(prefix="run-", dir=CACHE) as work, Net("w") as net:
        job, status, console = (os.path.join(work, file) for file in ("job", "status", "console"))
        virtual = _virtualizes()
        variables = {k: v for k, v in os.environ.items() if k.startswith("VMA_")}
        if not virtual:
            variables["VMA_TEST_SLOW"] = "10"
        with open(job, "w") as f:
            f.writelines(f"export {k}={shlex.quote(v)}\n" for k, v in variables.items())
            f.write(f"cd {shlex.quote(os.getcwd())}\nexec {shlex.join(command)}\n")
        cards = net["w"].call(_cards)
        line = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-smp", str(PROCESSORS), "-m", MEMORY]
        line += ["-accel", "kvm", "-cpu", "host"] if virtual else ["-accel", "tcg,thread=multi", "-cpu", "max"]
        line += ["-kernel", kernel.image, "-initrd", kernel.initramfs(work),
                 "-append", f"console=ttyS0 panic=-1 quiet net.ifnames=0 vma_job={job} vma_modules={kernel.modules}"]
        line += ["-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap", "-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]
        line += ["-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"]
        line += ["-device", "virtio-serial-pci", "-chardev", "stdio,id=output,signal=off", "-device", "virtserialport,nr=1,chardev=output",
                 "-chardev", f"file,id=status,path={status}", "-device", "virtserialport,nr=2,chardev=status"]
        for i, fd in enumerate(cards):
            line += ["-netdev", f"tap,id=n{i},fd={fd}", "-device", f"virtio-net-pci,netdev=n{i},mac=52:54:00:00:00:{i:02x}"]
        sys.stdout.flush()
        # Standard input stays open: at its end the guest could not write to the port either.
        machine = subprocess.Popen(line, stdin=subprocess.PIPE, pass_fds=cards, preexec_fn=_end_with_parent)
        for fd in cards:
            os.close(fd)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                machine.wait(limit)
        finally:
            machine.kill()
            machine.wait()
        with open(status) as f:
            text = f.read()
        if not text:
            with open(console, errors="replace") as f:
                raise RuntimeError(f"the guest ended without a result; its console ends with\n{''.join(f.readlines()[-60:])}")
        return int(text)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in SUITES:
        sys.exit(__doc__)
    sys.exit(run(sys.argv[1], sys.argv[2:]))
