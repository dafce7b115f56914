"""Multicast over the ring: feeds to many receivers of every kind, and unmodified sockperf.

Feed: every receiver gets exactly the set of datagrams that the kernel's own receivers get, whoever is preloaded. Of the
kernel's counters of the receiving namespace: what a ring has a copy of, its socket's twin does not queue.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
import mc_feeds
import sockperf
from netns import binary, eventually, preload_env


class Feeds(case.NetCase):
    def setUp(self):
        self.second = self.a.ip.rsplit(".", 1)[0] + ".201"
        self.ip(self.a, "addr", "replace", f"{self.second}/24", "dev", self.a.dev)
        self.b.sysctl("net.ipv4.igmp_max_memberships", 100)

    def ip(self, space, *args):
        subprocess.run(["ip", "-n", space.name, *args], check=True)

    def is_up(self, space):
        shown = subprocess.run(["ip", "-n", space.name, "link", "show", space.dev], capture_output=True, text=True, check=True)
        return " state UP " in shown.stdout

    def feed(self, rate, count, preload_sender):
        readers = list(mc_feeds.receivers(self.b, self.second))
        before = self.b.counters("Udp")["InDatagrams"]
        done = mc_feeds.send(self.a, self.second, rate, count, preload_sender)
        self.assert_ok(done)
        expected = mc_feeds.expected(done.out, self.second)
        self.assertEqual(sum(n for (_, which), (n, _) in expected.items() if which == "all"), count)
        for what, sockets, process in readers:
            self.assertEqual(process.wait(130), 0, process.out)
            got = mc_feeds.received(process.out)
            self.assertEqual(len(got), mc_feeds.GROUPS * sockets, process.out)
            for group, n, total, unended in got:
                self.assertEqual(([n, total], unended), (expected[group, "source" if what == "source" else "all"], ""),
                                 f"{what} receiver of group {group}: {process.out}")
        # The kernel's own two receivers of each group, and the word that ends the feed.
        delivered = self.b.counters("Udp")["InDatagrams"] - before
        self.assertLess(delivered, 2 * count * 1.05 + mc_feeds.GROUPS * 8 * 110, "rings did not take the preloaded receivers' share")


class Feed(Feeds):
    def test_equal_sets(self):
        for preload_sender in (True, False):
            with self.subTest(preload_sender=preload_sender):
                self.feed(4000, 6000, preload_sender)

    def test_a_member_follows_its_interface_down_and_up(self):
        process = self.b.start([binary("mc_feed"), "recv", self.b.ip, "1", "1", "any", self.second], env=preload_env())
        process.expect("ready", 30)
        for state in ("down", "up"):
            self.ip(self.b, "link", "set", self.b.dev, state)
        for space in (self.a, self.b):  # the peer's carrier follows a moment later
            self.assertTrue(eventually(lambda: self.is_up(space), 10))
        done = self.a.run([binary("mc_feed"), "send", self.a.ip, self.second, "1", "1000", "500"], timeout=60)
        self.assert_ok(done)
        self.assertEqual(process.wait(60), 0, process.out)
        self.assertIn("got 0 500 ", process.out)


class Members(Feeds):
    def receiver(self, what="any"):
        process = self.b.start([binary("mc_feed"), "recv", self.b.ip, "1", "1", what, self.second], env=preload_env())
        process.expect("ready", 30)
        return process

    def send(self, count):
        done = self.a.run([binary("mc_feed"), "send", self.a.ip, self.second, "1", "2000", str(count)], timeout=60)
        self.assert_ok(done)

    def test_killed_members_leave_no_trace(self):
        """More of them, one after the other, than rings can have a group."""
        stays = self.receiver()
        for _ in range(18):
            self.receiver().kill()
        late = self.receiver("group")
        with self.past_the_kernel(self.b, 2 * 1000 + 2 * 100):
            self.send(1000)
            for process in (stays, late):
                self.assertEqual(process.wait(60), 0, process.out)
                self.assertIn("got 0 1000 ", process.out)

    def test_privileges_given_up(self):
        """Nothing is lost and nothing comes twice when a process gives up root: from then on its groups are the kernel's."""
        groups = ("239.77.7.1", "239.77.7.2")
        process = self.python(self.b, "mc_drop.py", self.b.ip, *groups, 6300, preload=True, start=True, stdin=subprocess.PIPE)
        process.expect("ready", 30)
        sender = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(sender.close)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(self.a.ip))

        def send(group, text):
            sender.sendto(text.encode(), (group, 6300))
            process.expect(f"got {text}", 10)

        send(groups[0], "one")
        process.tell("drop")
        process.expect("did drop", 10)
        send(groups[0], "two")
        process.tell("join")
        process.expect("did join", 10)
        for group, text in ((groups[1], "three"), (groups[0], "four"), (groups[1], "five")):
            send(group, text)
        process.tell("end")
        self.assertEqual(process.wait(20), 0, process.out)
        self.assertEqual(re.findall(r"got (\w+)", process.out), ["one", "two", "three", "four", "five"])


class FeedFull(Feeds):
    def test_a_hundred_thousand_a_second(self):
        for preload_sender in (True, False):
            with self.subTest(preload_sender=preload_sender):
                self.feed(100000, 500000, preload_sender)


class Sockperf(case.NetCase):
    """Groups, --mc-rx-if and --mc-tx-if as sockperf's users write them."""

    def setUp(self):
        for space in (self.a, self.b):
            subprocess.run(["ip", "-n", space.name, "route", "replace", "224.0.0.0/4", "dev", space.dev], check=True)
            space.sysctl("net.ipv4.igmp_max_memberships", 300)

    def one(self, mode, where, ends=(True, True), seconds=1, client=(), server=(), count=1):
        client_env, server_env = (preload_env() if end else None for end in ends)
        before = self.b.counters("Udp")["InDatagrams"], self.a.counters("Udp")["InDatagrams"]
        process = self.b.start(["sockperf", "sr", *where, "--mc-rx-if", self.b.ip, "--mc-tx-if", self.b.ip, *server], cpu=1,
                               env=server_env)
        self.assertTrue(eventually(lambda: self.members() >= count, 20), process.out)
        done = self.a.run(["sockperf", mode, *where, "-t", str(seconds), "--mc-rx-if", self.a.ip, "--mc-tx-if", self.a.ip,
                           *client], cpu=0, env=client_env, timeout=60)
        server_rc = process.stop(signal.SIGINT, 15)
        result = sockperf.parse(mode, done.rc, done.out, server_rc, process.out)
        self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
        self.assertGreater(result.sent, 0, result.text)
        self.assertGreater(result.received, 0, result.text)
        result.kernel_in = self.b.counters("Udp")["InDatagrams"] - before[0]
        result.client_kernel_in = self.a.counters("Udp")["InDatagrams"] - before[1]
        return result

    def members(self):
        """Groups that the server's namespace is in, 224.0.0.1 aside."""
        groups = re.findall(r"^\t+([0-9A-F]{8}) ", self.b.read("/proc/thread-self/net/igmp"), re.M)
        return len(set(groups) - {"010000E0"})

    def test_ping_pong(self):
        for ends in ((True, True), (True, False), (False, True)):
            with self.subTest(ends=ends):
                result = self.one("pp", ["-i", "239.77.5.1", "-p", "11111"], ends)
                self.assertEqual((result.dropped, result.duplicated, result.out_of_order), (0, 0, 0), result.text)
                if ends[1]:
                    self.assertLess(result.kernel_in, 0.05 * result.received + case.SLACK, result.text)

    def test_throughput(self):
        result = self.one("tp", ["-i", "239.77.5.2", "-p", "11112"])
        self.assertLessEqual(result.received, result.sent, result.text)
        self.assertLess(result.kernel_in, 0.05 * result.received + case.SLACK, result.text)

    def test_many_groups(self):
        with tempfile.NamedTemporaryFile("w", prefix="vt-feed-", suffix=".txt") as feed:
            for i in range(200):
                feed.write(f"U:239.77.6.{i + 1}:{12000 + i % 4}\n")
            feed.flush()
            for way in ("epoll", "select"):
                with self.subTest(way):
                    result = self.one("pp", ["-f", feed.name, "-F", way], count=200)
                    self.assertEqual((result.dropped, result.duplicated, result.out_of_order), (0, 0, 0), result.text)
                    self.assertLess(result.kernel_in, 0.05 * result.received + case.SLACK, result.text)

    def test_loopback_of_one_host(self):
        """Client and server in one namespace: the kernel makes the copies of what this host sends."""
        where = ["-i", "239.77.5.3", "-p", "11113", "--mc-loopback-enable", "--mc-rx-if", self.b.ip, "--mc-tx-if", self.b.ip]
        for ends in ((True, True), (True, False), (False, True)):
            with self.subTest(ends=ends):
                client_env, server_env = (preload_env() if end else None for end in ends)
                process = self.b.start(["sockperf", "sr", *where], cpu=1, env=server_env)
                self.assertTrue(eventually(lambda: self.members() >= 1, 20), process.out)
                done = self.b.run(["sockperf", "pp", *where, "-t", "1"], cpu=0, env=client_env, timeout=60)
                server_rc = process.stop(signal.SIGINT, 15)
                result = sockperf.parse("pp", done.rc, done.out, server_rc, process.out)
                self.assertEqual((result.client_rc, result.server_rc), (0, 0), result.text)
                self.assertEqual((result.dropped, result.duplicated, result.out_of_order), (0, 0, 0), result.text)
                self.assertGreater(result.answers, 0, result.text)


if __name__ == "__main__":
    case.main()
