"""Namespaces a and b with the forwarder (forwarder.cc) between them: one subnet, frames that are lost, late and broken.

Checksums are complete and frames at most MTU-sized on the wire (no offloads), as the forwarder wants it.
"""

import signal
import subprocess

import case
from netns import binary


class BadWire(case.NetCase):
    letters = "axb"
    net_options = {"offloads": {"tx": "off", "tso": "off", "gso": "off", "gro": "off"}}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.b.ip = cls.a.ip.rsplit(".", 1)[0] + ".3"
        for space, dev in ((cls.b, cls.b.dev), (cls.x, cls.a.dev), (cls.x, cls.x.dev), *((cls.x, f"v{x}") for x in "ab")):
            subprocess.run(["ip", "-n", space.name, "addr", "flush", "dev", dev], capture_output=True, check=False)
        subprocess.run(["ip", "-n", cls.b.name, "addr", "add", f"{cls.b.ip}/24", "dev", cls.b.dev], check=True)

    def wire(self, **harm):
        """Starts the forwarder; its process. harm: its arguments."""
        forwarder = self.x.start([binary("forwarder"), "va", "vb", *(f"{k}={v}" for k, v in harm.items())])
        forwarder.expect("ready")
        return forwarder

    def counts(self, forwarder):
        forwarder.stop(signal.SIGTERM)
        words = forwarder.expect(r"seen=.*").group(0).split()
        return {name: int(value) for name, value in (w.split("=") for w in words)}
