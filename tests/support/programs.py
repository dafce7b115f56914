"""Real programs between namespaces: which of them are preloaded, and which way their segments went.

    for name in ("both", "server"):
        with self.preloaded(name) as ends:
            server = self.b.start([...], env=ends.env("server"))
            with self.segments(ends, least=1000):
                client = self.a.run([...], env=ends.env("client"))
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile

import case
from netns import binary, library, preload_env

SLACK = 300  # segments of connections that begin before a ring serves the listener, or end after it is gone


class Ends:
    """Which roles of a run are preloaded."""

    def __init__(self, name, roles):
        self.name, self.roles = name, set(roles)

    def __contains__(self, role):
        return role in self.roles

    def __bool__(self):
        return bool(self.roles)

    def env(self, role, **variables):
        """Environment for namespaces' start(): the banner stays away, warnings are shown."""
        return preload_env(VMA_TRACELEVEL="warning", **variables) if role in self.roles else None

    def words(self, role):
        """The same as words for a shell line."""
        return [f"{k}={v}" for k, v in (self.env(role) or {}).items()]


def need(program, package):
    """Path of an installed program. A missing one is an error, not a skip: the tests install what they need."""
    path = shutil.which(program, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if path is None:
        raise FileNotFoundError(f"{program} is not installed: Debian's package {package} has it (./dev test full installs it)")
    return path


RING_CAPABILITIES = ("net_admin", "net_raw", "bpf", "perfmon", "sys_admin")


def as_user(user, group, capabilities=RING_CAPABILITIES):
    """Command prefix: another user with these capabilities, as a unit's User= and AmbientCapabilities= start a service."""
    kept = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    return ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", f"--inh-caps={kept}", f"--ambient-caps={kept}",
            f"--bounding-set={kept}"]


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def seeded_file(path, size, seed=0):
    """A file whose bytes depend on the seed alone; its sha256."""
    with open(path, "wb") as f:
        for i in range(0, size, 1 << 20):
            f.write(hashlib.shake_128(b"%d %d" % (seed, i)).digest(min(1 << 20, size - i)))
    return digest(path)


class ProgramCase(case.NetCase):
    """Each test gets an empty folder that every user may read. ALL: the runs of the full tier, the kernel as reference."""

    ALL = ("kernel", "both", "server", "client")
    ROLES = {"kernel": (), "both": ("client", "server"), "server": ("server",), "client": ("client",)}
    PLACES = {"client": "a", "server": "b"}  # role to namespace

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vt-programs-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        os.chmod(self.folder, 0o755)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def readable(self, env):
        """Environment for a program that another user starts: the library is where everybody may read it."""
        if not env:
            return env
        for source, name in ((library(), "libvma.so"), (binary("vmad"), "vmad")):
            if not os.path.exists(self.path(name)):
                shutil.copy(source, self.path(name))
        return {**env, "LD_PRELOAD": self.path("libvma.so")}

    def certificate(self, ip):
        """key.pem and cert.pem in the folder, for vt.test and the address."""
        subprocess.run([need("openssl", "openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-days", "2", "-subj", "/CN=vt.test", "-addext", f"subjectAltName=DNS:vt.test,IP:{ip}", "-keyout",
                        self.path("key.pem"), "-out", self.path("cert.pem")], check=True, capture_output=True)

    @contextlib.contextmanager
    def preloaded(self, name):
        """A run of this name: a subTest that ends with no process left."""
        with self.subTest(preloaded=name):
            print(f"{self.id().split('.', 1)[1]}: preloaded {name}", flush=True)
            try:
                yield Ends(name, self.ROLES[name])
            finally:
                for letter in self.letters:
                    self.net[letter].end_processes()

    @contextlib.contextmanager
    def segments(self, ends, least, slack=SLACK, unseen=(), places=None):
        """The block exchanges `least` segments or more. A namespace whose programs are preloaded may show `slack` of them in
        its kernel, every other one must show them all. unseen: roles that are not looked at."""
        places = {role: letter for role, letter in (places or self.PLACES).items() if role not in unseen}
        before = {letter: self.net[letter].counters("Tcp")["InSegs"] for letter in places.values()}
        yield
        for role, letter in places.items():
            seen = self.net[letter].counters("Tcp")["InSegs"] - before[letter]
            print(f"  {role}{' (preloaded)' if role in ends else ''}: {seen} segments in the kernel", flush=True)
            if role in ends:
                self.assertLess(seen, slack, f"the kernel of the {role} saw {seen} segments")
            else:
                self.assertGreaterEqual(seen, least, f"the kernel of the {role} saw only {seen} segments")
