"""A Debian of its own for tests of the packages: a root that debootstrap makes, the packages of this tree beside it, and systemd
as the first process of that root. Downloads about 70 MB."""

import contextlib
import glob
import os
import shutil
import subprocess
import tempfile

import case
from netns import Net, eventually, library

LIMIT = 600  # seconds of one step
TREE = os.path.dirname(os.path.dirname(library()))
# The mounts are those of the program's own mount namespace, so they end with it.
ENTER = """set -e
mount -t proc proc "$1/proc"
for folder in sys dev; do mount --rbind "/$folder" "$1/$folder"; done
exec chroot "$@"
"""
# What a container manager prepares for systemd. It writes to a layer in memory: the root stays as it is.
BOOT = """set -e
mount -t cgroup2 none /sys/fs/cgroup # "ip netns exec" has put another /sys here
echo $$ >"/sys/fs/cgroup/$2/cgroup.procs"
exec unshare --pid --mount --cgroup --uts --ipc --fork --kill-child=KILL sh -c '
    mount -t tmpfs none /mnt
    mkdir /mnt/upper /mnt/work /mnt/root
    mount -t overlay -o "lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" none /mnt/root
    cd /mnt/root
    mount -t proc none proc
    mount -t sysfs -o ro none sys
    mount -t cgroup2 none sys/fs/cgroup
    mount -t tmpfs -o mode=755 none run
    mount -t tmpfs -o mode=755 none dev
    for device in null zero full random urandom tty; do
        touch dev/$device
        mount --bind /dev/$device dev/$device
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=666 none dev/pts
    ln -s pts/ptmx dev/ptmx
    mount -t tmpfs none dev/shm
    pivot_root . mnt
    umount -l /mnt
    exec env -i container=libvma PATH=/usr/sbin:/usr/bin /lib/systemd/systemd' sh "$1"
"""


def do(*command):
    """Runs a command of the machine; its output. AssertionError when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT,
                          env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"})
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def make_packages(folder):
    """The packages of this tree, as files in `folder`."""
    do("cpack", "--config", f"{TREE}/CPackConfig.cmake", "-B", folder)
    return sorted(glob.glob(f"{folder}/*.deb"))


def cgroups():
    """Where the hierarchy of control groups that systemd wants is mounted."""
    with open("/proc/self/mounts", encoding="ascii") as f:
        mounted = [line.split()[1] for line in f if line.split()[2] == "cgroup2"]
    if not mounted:
        raise AssertionError("this machine has no cgroup2 file system, so systemd cannot run in a namespace")
    return mounted[0]


class RootNet(Net):
    """Two namespaces, a folder and a control group that are removed with them."""

    def __enter__(self):
        self.root = tempfile.mkdtemp(prefix="vt-debian-", dir="/var/tmp")
        self.group = os.path.join(cgroups(), os.path.basename(self.root))
        os.mkdir(self.group)
        self._folders = [self.root, self.group]
        return super().__enter__()


class RootCase(case.NetCase):
    """The root, with sockperf and with the packages that are to be installed in /packages."""

    net_class = RootNet
    more = []  # Debian's packages that a test wants besides

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = cls.net.root
        cls.enter = ["unshare", "--mount", "sh", "-c", ENTER, "sh", cls.root]
        cls.made = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="vt-packages-"))
        cls.debs = make_packages(cls.made)

    @classmethod
    def bootstrap(cls):
        do("unshare", "--mount", "debootstrap", "--variant=minbase", "bookworm", cls.root)
        cls.inside("apt-get", "-q", "update")
        cls.inside("apt-get", "-qy", "--no-install-recommends", "install", "sockperf", *cls.more)
        os.mkdir(f"{cls.root}/packages")
        for deb in cls.debs:
            shutil.copy(deb, f"{cls.root}/packages")

    @classmethod
    def inside(cls, *command):
        return do(*cls.enter, *command)

    @classmethod
    def here(cls, *packages):
        """Their files, as the root knows them; all of them without names."""
        files = [os.path.basename(deb) for deb in cls.debs]
        return [f"/packages/{name}" for name in files if not packages or name.split("_")[0] in packages]


class Booted:
    """systemd, started in a namespace on top of a root, with processes, mounts and control groups of its own."""

    def __init__(self, space, root, group):
        self.space = space
        self._boot = space.start(["sh", "-c", BOOT, "sh", root, os.path.basename(group)])
        self._pid = None
        if not eventually(self._running, 60):
            failed = self.space.run(self.command("systemctl", "--failed")).out if self._pid else ""
            raise AssertionError(f"systemd does not come up\n{self._boot.out}\n{failed}")

    def _running(self):
        with contextlib.suppress(OSError, ValueError):  # its number here: the child of unshare, once that has become systemd
            with open(f"/proc/{self._boot.pid}/task/{self._boot.pid}/children", encoding="ascii") as f:
                pid = int(f.read())
            if os.readlink(f"/proc/{pid}/exe").endswith("/systemd"):
                self._pid = pid
        return self._pid and self.space.run(self.command("systemctl", "is-system-running")).out.strip() == "running"

    def command(self, *words):
        return ["nsenter", f"--target={self._pid}", "--all", *words]

    def run(self, *words, timeout=60.0):
        """Runs a command as root in there; its output. AssertionError when it fails."""
        done = self.space.run(self.command(*words), timeout=timeout)
        if done.rc != 0:
            raise AssertionError(f"{' '.join(words)}: exit status {done.rc}\n{done.out}")
        return done.out.strip()

    def property(self, unit, name):
        return self.run("systemctl", "show", "--property", name, "--value", unit)
