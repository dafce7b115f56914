"""stress-ng's socket, datagram and readiness stressors, each a crowd of forks, signals and odd calls inside one program; --verify
makes it check what comes back. Its peers are its own children on one host, so the traffic is the kernel's: what counts is that
no stressor fails, and that each makes progress."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from programs import ProgramCase, need


class Full(ProgramCase):
    letters = "ab"
    seconds = 8
    STRESSORS = {
        "sock": ["--sock", "2"],
        "sock by sendmmsg": ["--sock", "2", "--sock-opts", "sendmmsg"],
        "sock on the interface": ["--sock", "2", "--sock-if", "{dev}"],
        "sockabuse": ["--sockabuse", "2"],
        "sockmany": ["--sockmany", "1"],
        "sockpair": ["--sockpair", "2"],
        "sockfd": ["--sockfd", "1"],
        "udp": ["--udp", "2"],
        "udp on the interface": ["--udp", "2", "--udp-if", "{dev}"],
        "udp-flood": ["--udp-flood", "1", "--udp-flood-if", "{dev}"],
        "epoll": ["--epoll", "2", "--epoll-domain", "ipv4"],
        "poll": ["--poll", "2"],
        "sendfile": ["--sendfile", "1"],
        "splice": ["--splice", "1"],
        "sigio": ["--sigio", "1"],
        "fork": ["--fork", "1"],
        "vfork": ["--vfork", "1"],
        "dup": ["--dup", "1"],
    }

    def stress(self, ends, words):
        line = [need("stress-ng", "stress-ng"), *(word.format(dev=self.a.dev) for word in words), "--timeout", f"{self.seconds}s",
                "--verify", "--metrics-brief", "--temp-path", self.folder, "--oomable"]
        done = self.a.run(line, env=ends.env("client"), cwd=self.folder, timeout=self.seconds + 60)
        self.assert_ok(done)
        self.assertNotRegex(done.out, r"(?m)^stress-ng: (fail|error):", done.out)
        metrics = re.findall(r"(?m)metrc: \[\d+\] (\S+) +(\d+) +([0-9.]+)", done.out)
        self.assertEqual(len(metrics), 1, done.out)
        self.assertNotIn("skip", done.out)
        return int(metrics[0][1])

    def test_stressors(self):
        os.chmod(self.folder, 0o777)
        for kind, words in self.STRESSORS.items():
            done = {}
            for name in ("kernel", "client"):
                with self.subTest(stressor=kind), self.preloaded(name) as ends:
                    done[name] = self.stress(ends, words)
                    print(f"  {kind}: {done[name]}", flush=True)
                    self.assertGreater(done[name], 0, kind)


if __name__ == "__main__":
    del ProgramCase
    case.main()
