"""Programs that talk UDP as resolvers, NTP and QUIC do: dig, curl, glibc's resolver, recvmsg/sendmsg with ancillary data.

Each behaves as on the kernel, preloaded at either end or both, and with and without the rule that keeps DNS there.
"""

import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case

DNS_RULE = "application-id * *\nuse os udp_connect *:53\n"
NO_RULE = "application-id * *\n"


class Dns(case.NetCase):
    def setUp(self):
        self.server = self.python(self.b, "dns_server.py", self.b.ip, start=True, cpu=1)
        self.server.expect("ready")

    def rules(self, text):
        with tempfile.NamedTemporaryFile("w", prefix="vt-rules-", suffix=".conf", delete=False) as f:
            f.write(text)
        self.addCleanup(os.unlink, f.name)
        return case.preload_env(VMA_CONFIG_FILE=f.name)

    def dig(self, *args, env=None):
        done = self.a.run(["dig", "+tries=1", "+time=3", "+short", f"@{self.b.ip}", *args], env=env, cpu=0)
        self.assert_ok(done)
        return done.out

    def test_kernel(self):
        self.assertIn("10.1.2.3", self.dig("some.test"))

    def test_dig_with_the_dns_rule_stays_on_the_kernel(self):
        env = self.rules(DNS_RULE)
        with self.through_the_kernel(self.a, 10):
            for i in range(10):
                self.assertIn("10.1.2.3", self.dig(f"name{i}.test", env=env))

    def test_dig_without_the_rule_is_offloaded(self):
        env = self.rules(NO_RULE)
        before = self.a.counters("Udp")["InDatagrams"]
        for i in range(10):
            self.assertIn("10.1.2.3", self.dig(f"name{i}.test", env=env))
        self.assertLess(self.a.counters("Udp")["InDatagrams"] - before, 5)

    def test_large_answer(self):
        for rule in (DNS_RULE, NO_RULE):
            with self.subTest(rule=rule):
                self.assertIn("t" * 240, self.dig("+bufsize=1400", "TXT", "long.test", env=self.rules(rule)))

    def test_many_questions_in_one_program(self):
        names = [f"n{i}.test" for i in range(100)]
        out = self.dig(*[word for n in names for word in (n, "A")], env=self.rules(NO_RULE))
        self.assertEqual(out.count("10.1.2.3"), 100, out)

    def test_libc_resolver_and_curl(self):
        self.a.etc("resolv.conf", f"nameserver {self.b.ip}\noptions timeout:3 attempts:1\n")
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="vt-web-"))
        with open(os.path.join(folder, "page"), "w") as f:
            f.write("hello")
        web = self.b.start(["/usr/bin/python3", "-m", "http.server", "--bind", self.b.ip, "8080"], cwd=folder)
        self.b.wait_bound("tcp", 8080, process=web)
        for name, env in (("kernel", None), ("rule", self.rules(DNS_RULE)), ("no rule", self.rules(NO_RULE))):
            with self.subTest(name):
                self.assertIn("10.1.2.3", self.a.run(["getent", "ahostsv4", "some.test"], env=env).out)
                done = self.a.run(["curl", "-sS", "-m", "10", "http://web.test:8080/page"], env=env)
                self.assertEqual(done.rc, 0, done.out)
                self.assertTrue(done.out.endswith("hello"), done.out)


class Talk(case.NetCase):
    """udp_talk.py against udp_echo.py bound to ANY."""

    port = 7000

    def talk(self, kind, count, client, server, connected, via="recvmsg", tos=0, address="0.0.0.0"):
        Talk.port += 1
        echo = self.python(self.b, "udp_echo.py", address, self.port, "--via", via, start=True, preload=server, cpu=1)
        echo.expect("ready")
        done = self.python(self.a, "udp_talk.py", kind, self.b.ip, self.port, count, "--tos", tos,
                           *(["--connected"] if connected else []), preload=client, cpu=0)
        echo.kill()
        self.assert_ok(done)
        return json.loads(done.out.strip().splitlines()[-1])

    def each(self, kind, count):
        for client in (False, True):
            for server in (False, True):
                for connected in (False, True):
                    with self.subTest(client=client, server=server, connected=connected):
                        before = [s.counters("Udp")["InDatagrams"] for s in (self.a, self.b)]
                        seen = self.talk(kind, count, client, server, connected, tos=0x28)
                        after = [s.counters("Udp")["InDatagrams"] for s in (self.a, self.b)]
                        self.assertEqual(seen["from"], [self.b.ip])
                        self.assertEqual(seen["to"], [self.a.ip])
                        self.assertEqual(seen["interfaces"], [self.a.dev])
                        self.assertEqual(seen["tos"], [0x28])
                        self.assertEqual(seen["truncated"], 0)
                        for preloaded, moved in zip((client, server), (a - b for a, b in zip(after, before))):
                            if preloaded:
                                self.assertLess(moved, 0.05 * count + case.SLACK)
                            else:
                                self.assertGreaterEqual(moved, count)

    def test_quic_like(self):
        self.each("quic", 2000)

    def test_ntp_like(self):
        self.each("ntp", 500)

    def test_recvfrom_server_on_one_address(self):
        for client, server in ((False, False), (True, True)):
            with self.subTest(client=client, server=server):
                self.assertEqual(self.talk("quic", 500, client, server, False, "recvfrom", address=self.b.ip)["good"], 500)

    def test_receive_timestamps(self):
        import time
        for server in (False, True):
            with self.subTest(server=server):
                Talk.port += 1
                echo = self.python(self.b, "udp_echo.py", self.b.ip, self.port, "--stamps", start=True, preload=server)
                echo.expect("ready")
                begin = time.time()
                self.assert_ok(self.python(self.a, "udp_talk.py", "ntp", self.b.ip, self.port, 50, preload=server))
                end = time.time()
                stamps = [float(line.split()[1]) for line in echo.out.splitlines() if line.startswith("stamp")]
                self.assertEqual(len(stamps), 50, echo.out)
                self.assertEqual(stamps, sorted(stamps))
                self.assertTrue(begin - 0.01 <= stamps[0] and stamps[-1] <= end + 0.01, (begin, stamps[0], stamps[-1], end))


class SeveralInterfaces(case.NetCase):
    """One ANY-bound server between two networks: both are answered, each from the address it asked."""

    letters = "abc"

    def test_any_bind(self):
        for server in (False, True):
            with self.subTest(server=server):
                port = 7500 + server
                echo = self.python(self.b, "udp_echo.py", "0.0.0.0", port, start=True, preload=server)
                echo.expect("ready")
                before = self.b.counters("Udp")["InDatagrams"]
                for client in (self.a, self.c):
                    asked = self.b.addresses[client.letter]
                    done = self.python(client, "udp_talk.py", "ntp", asked, port, 200)
                    self.assert_ok(done)
                    self.assertEqual(json.loads(done.out)["from"], [asked])
                moved = self.b.counters("Udp")["InDatagrams"] - before
                self.assertLess(moved, 0.05 * 400 + case.SLACK) if server else self.assertGreaterEqual(moved, 400)


if __name__ == "__main__":
    case.main()
