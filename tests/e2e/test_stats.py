"""Seen: vma_stats tells from outside which sockets of a preloaded program are accelerated, over which ring, or why not; its
counters are the datagrams that the peer sent; and a process that stops, dies or ends is told, too."""

import html.parser
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import case
from netns import binary, eventually
from viewed import PORT, Viewed

COUNT, SIZE = 200, 2048 // 2


class Seen(Viewed):
    script = "udp_seen.py"

    def talk(self, count):
        """The peer, a kernel socket, sends `count` datagrams and has each back before the next."""
        peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.settimeout(5)
        for i in range(count):
            text = i.to_bytes(4, "big") * (SIZE // 4)
            peer.sendto(text, (self.b.ip, PORT))
            self.assertEqual(peer.recv(65536), text)

    def test_each_socket_is_explained(self):
        with self.past_the_kernel(self.b, COUNT):
            self.talk(COUNT)
        self.assertRegex(self.explained("echo"), rf"udp +{self.b.ip}:{PORT} +-> \* +offloaded: packet ring on {self.b.dev}")
        self.assertRegex(self.explained("loopback"), rf"udp +127\.0\.0\.1:{PORT} .* kernel: loopback: .*this host")
        self.assertRegex(self.explained("unused"), r"udp .* kernel so far: undecided: no decision yet")
        self.assertRegex(self.explained("six"), r"udp6 .* kernel: ipv6: IPv6 sockets are not offloaded yet; use AF_INET")

    def test_counters_are_the_datagrams_sent(self):
        self.talk(COUNT)
        page = json.loads(self.stats("--json", "-p", str(self.pid)))
        (process,) = page["processes"]
        (echo,) = [s for s in process["sockets"] if s["fd"] == self.fds["echo"]]
        seen = echo["counters"]
        self.assertEqual((echo["path"], echo["reason"], echo["rings"]), ("offloaded", "none", [0]))
        self.assertEqual((seen["rx_packets"], seen["rx_bytes"]), (COUNT, COUNT * SIZE), seen)
        self.assertEqual(seen["rx_os_packets"], 0, seen)
        # The first answer may go by the kernel, which then resolves the neighbour.
        self.assertEqual(seen["tx_packets"] + seen["tx_os_packets"], COUNT, seen)
        self.assertLessEqual(seen["tx_os_packets"], 2, seen)
        (ring,) = process["rings"]
        self.assertEqual((ring["kind"], ring["interface"], ring["open"]), ("packet", self.b.dev, True))
        # The frames on the wire: a datagram each, with its Ethernet, IP and UDP headers.
        self.assertEqual((ring["rx_frames"], ring["rx_bytes"]), (COUNT, COUNT * (SIZE + 42)))
        self.assertEqual((ring["tx_frames"], ring["tx_bytes"]), (seen["tx_packets"], seen["tx_packets"] * (SIZE + 42)))
        self.assertEqual((ring["drops"], ring["rx_dropped"], ring["pool_in_use"]), ({}, 0, 0))
        # More datagrams, and the counters follow, in the view that VMA's users know.
        self.talk(COUNT)
        basic = self.stats("-p", str(self.pid), "-c", "1")
        self.assertRegex(basic, rf"\Avmastat: stats for application: python3\S* with pid: {self.pid}\n fd  +-+ total offloaded")
        line = re.search(rf"(?m)^ {self.fds['echo']:<3} Rx: +(\d+) +(\d+) +\d+ +0 +[\d.]+ +(\d+) ", basic)
        self.assertIsNotNone(line, basic)
        self.assertEqual(tuple(map(int, line.groups())), (2 * COUNT, 2 * COUNT * SIZE // 1024, 0), basic)

    def test_netstat_view(self):
        lines = self.stats("-v", "5").splitlines()
        self.assertEqual(lines[0].split(), "Proto Offloaded Recv-Q Send-Q Local Address Foreign Address State Inode PID/Program "
                                           "name".split())
        rows = {f[4]: f for f in (line.split() for line in lines[1:])}
        inode = os.stat(f"/proc/{self.pid}/fd/{self.fds['echo']}").st_ino
        self.assertEqual(rows[f"{self.b.ip}:{PORT}"][:4] + rows[f"{self.b.ip}:{PORT}"][5:7],
                         ["udp", "Yes", "0", "0", "0.0.0.0:*", str(inode)])
        self.assertRegex(rows[f"{self.b.ip}:{PORT}"][7], rf"^{self.pid}/python3")
        self.assertEqual(rows[f"127.0.0.1:{PORT}"][:2], ["udp", "No"])

    def test_a_fork_leaves_the_page_alone(self):
        peer = self.a.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.settimeout(5)
        peer.sendto(b"fork", (self.b.ip, PORT))
        self.assertEqual(peer.recv(100), b"fork")
        self.talk(COUNT)
        self.assertIn("offloaded: packet ring", self.explained("echo"))

    def test_end_of_the_process(self):
        self.assertEqual(os.stat(self.page).st_mode & 0o7777, 0o640)
        self.program.stdin.close()
        self.assertEqual(self.program.wait(10), 0, self.program.out)
        self.assertFalse(os.path.exists(self.page))
        self.assertIn("no page", self.stats("explain", "-p", str(self.pid), status=1))

    def test_killed(self):
        self.program.send_signal(signal.SIGKILL)
        self.program.wait(10)
        self.assertTrue(os.path.exists(self.page))
        self.stats("-F", "-c", "1", status=1)
        self.assertTrue(os.path.exists(self.page))
        self.assertIn("no preloaded process", self.stats("explain", status=1))
        self.assertFalse(os.path.exists(self.page))

    def test_stopped(self):
        self.talk(1)
        self.program.send_signal(signal.SIGSTOP)

        def stopped():
            # Each thread by itself, a moment apart.
            states = []
            for task in os.listdir(f"/proc/{self.pid}/task"):
                with open(f"/proc/{self.pid}/task/{task}/stat") as f:
                    states.append(f.read().rpartition(")")[2].split()[0])
            return set(states) == {"T"}

        self.assertTrue(eventually(stopped))
        out = self.stats("explain", "-p", str(self.pid))
        self.assertIn("does not answer", out)
        self.assertIn("offloaded: packet ring", out)
        self.program.send_signal(signal.SIGCONT)
        self.talk(1)

    def test_bad_pages_and_options(self):
        for name, content in (("vmastat.1", b"rubbish"), ("vmastat.2", b"")):
            with open(os.path.join(self.folder, name), "wb") as f:
                f.write(content)
        out = self.stats("explain")
        self.assertRegex(out, r"vmastat\.1 is cut short")
        self.assertRegex(out, r"vmastat\.2 is cut short")
        self.assertIn("offloaded: packet ring", out)
        self.assertIn("--interval", self.stats("-v", "9", status=1))
        self.assertIn("--interval", self.stats("-p", "none", status=1))
        self.assertIn("--interval", self.stats("-n", "no-such-program", status=1))


    def test_views_of_queue_and_everything(self):
        self.talk(COUNT)
        fd = self.fds["echo"]
        queue = self.stats("-p", str(self.pid), "-v", "2", "-c", "1", "-s", str(fd))
        self.assertRegex(queue, r"(?m)^ fd +-{23} total offloaded -{25}   -{9} total os -{10}$")
        self.assertRegex(queue, r"pkt +Kbyte +eagain +error +poll% +-{4} queue pkt -{5} +pkt +Kbyte")
        rows = re.findall(r"(?m)^ (\d*) +[RT]x: .*$", queue)
        self.assertEqual(rows, [str(fd), ""], "only the socket asked for: " + queue)
        self.assertRegex(queue, rf"(?m)^ {fd:<3} Rx: +{COUNT} +{COUNT * SIZE // 1024} +\d+ +0 +[\d.]+ +0 +\d+ +0 +0 ")
        full = self.stats("-p", str(self.pid), "-v", "3", "-c", "1")
        self.assertIn(f"\tFd=[{fd}]\n- UDP, Blocked, Offloaded, MC Loop Enabled\n- Local Address   = [{self.b.ip}:{PORT}]\n", full)
        self.assertRegex(full, rf"Rx Offload: {COUNT * SIZE // 1024} / {COUNT} / \d+ / 0 \[kilobytes/packets/eagains/errors\]")
        self.assertRegex(full, r"\tselect\nRx fds ready: \d+ / \d+ \[os/offload\]\nPolls \[miss/hit\]: \d+ / \d+ \(")
        self.assertRegex(full, r"\tCQ=\[0\]\nPackets dropped: +0\nPackets queue len: +\d+\nDrained max: +[1-9]")
        self.assertIn(f"\tRING_PACKET=[0]\nInterface:           {self.b.dev}\n", full)
        self.assertRegex(full, r"\tBUFFER_POOL\(RX\)=\[0\]\nSize: +[1-9]")
        self.assertIn("Rx and Tx not active", full)  # of the socket that was never used
        groups = self.stats("-p", str(self.pid), "-v", "4").splitlines()
        self.assertEqual(groups[:2], ["VMA Group Memberships Information", "Group                fd number"])
        self.assertEqual([line.split() for line in groups[3:]], [["[239.5.5.5]", str(self.fds["group"])]])
        self.assertIn("- Member of = [239.5.5.5]\n", full)
        self.assertIn(f"\tFd=[{self.fds['group']}]\n- UDP, Blocked, Offloaded, MC Loop Disabled , MC IF = [{self.b.ip}]\n", full)

    def test_differences_and_zeroes(self):
        self.talk(COUNT)
        fd = self.fds["echo"]
        line = rf"(?m)^ {fd:<3} Rx: +(\d+) "
        rates = self.stats("-p", str(self.pid), "-d", "2", "-c", "2", "-i", "0")
        self.assertRegex(rates, r"pkt/s +Kbyte/s +eagain/s +error/s  poll%")
        self.assertEqual(re.findall(line, rates), ["0", "0"], "differences, nothing moves: " + rates)
        other = self.stats("-p", str(self.pid), "-z", "-s", str(self.fds["loopback"]), "-c", "1")
        self.assertNotRegex(other, line)
        self.assertEqual(re.findall(line, self.stats("-p", str(self.pid), "-c", "1")), [str(COUNT)])
        self.assertEqual(re.findall(line, self.stats("-p", str(self.pid), "-z", "-c", "1")), ["0"])
        self.talk(3)
        self.assertEqual(re.findall(line, self.stats("-p", str(self.pid), "-c", "1")), ["3"])
        # What programs read is not touched by it.
        self.assertEqual(self.json()[1][fd]["counters"]["rx_packets"], COUNT + 3)

    def test_a_viewer_that_is_killed_leaves_no_trace(self):
        for _ in range(5):
            viewer = self.b.start([binary("vma_stats"), "-k", self.folder, "-p", str(self.pid), "-v", "3", "-i", "0", "--latency", "on"])
            viewer.expect(r"RING_PACKET=\[0\]")
            viewer.kill()
            self.talk(10)
        _, sockets = self.json()
        self.assertEqual(sockets[self.fds["echo"]]["counters"]["rx_packets"], 50)

    def test_log_level_and_dump(self):
        self.talk(1)
        pid, fd = str(self.pid), str(self.fds["echo"])
        out = self.stats("-p", pid, "-S", fd, "info")
        self.assertIn(f"state of descriptor {fd} is in its log, at level INFO", out)
        self.assertNotIn("descriptor", self.program.out)  # VMA_TRACELEVEL is warning
        self.stats("-p", pid, "-l", "details", "-c", "1")
        self.assertEqual(self.json()[0]["log_level"], 4)
        self.stats("-p", pid, "-S", fd)
        self.program.expect(rf"descriptor {fd} =+\n")
        self.program.expect(rf"local {self.b.ip}:{PORT} peer none")
        self.program.expect(r"offloaded: yes, ring: packet, reason: none")
        self.program.expect(r"rx: 1 packets \d+ bytes")
        self.assertIn("is no log level", self.stats("-p", pid, "-l", "loud", status=1))
        # At debug the threads that use a socket are noted.
        self.assertNotIn("threads", self.json()[1][int(fd)])
        self.stats("-p", pid, "-l", "debug", "-c", "1")
        self.talk(1)
        self.assertEqual(self.json()[1][int(fd)]["threads"], {"receive": self.pid, "send": self.pid})
        self.assertIn(f"- Thread Id Rx: {pid:>5}, Tx: {pid:>5}\n", self.stats("-p", pid, "-v", "3", "-c", "1"))

    def test_what_the_process_knows(self):
        self.talk(1)
        pid = str(self.pid)
        network = re.escape(str(self.b.ip).rsplit(".", 1)[0])
        self.assertRegex(self.stats("-p", pid, "--dump=route"), rf"(?m)^{network}\.\d+/\d+ .* {self.b.dev} .* unicast$")
        self.assertRegex(self.stats("-p", pid, "--dump", "neigh"), rf"(?m)^{self.a.ip} +{self.b.dev} +(..:){{5}}.. +(REACHABLE|STALE)")
        self.assertRegex(self.stats("-p", pid, "--dump=flows"), rf"(?m)^0 +udp +{self.b.ip}:{PORT} +\* ")
        options = {o["name"]: o for o in self.json()[0]["options"]}
        self.assertEqual(options["VMA_STATS_SHMEM_DIR"], {"name": "VMA_STATS_SHMEM_DIR", "value": self.folder, "origin": "environment"})
        self.assertEqual(options["VMA_RX_POLL"]["origin"], "default")

    def test_latency_histograms(self):
        pid, fd = str(self.pid), self.fds["echo"]
        self.talk(5)
        self.assertNotIn("latency_ns", self.json()[1][fd])
        self.stats("-p", pid, "--latency", "on", "-s", str(fd), "-c", "1")
        self.talk(COUNT)
        times = self.json()[1][fd]["latency_ns"]
        self.assertEqual((times["receive"]["count"], times["send"]["count"]), (COUNT, COUNT))
        for side in times.values():
            self.assertEqual(sum(n for _, n in side["buckets"]), COUNT)
            self.assertTrue(0 < side["p50"] <= side["p99"] <= side["max"] < 1e9, side)
        self.assertNotIn("latency_ns", self.json()[1][self.fds["loopback"]])
        self.assertRegex(self.stats("-p", pid, "-v", "3", "-c", "1"), rf"Rx latency: {COUNT} times, p50 \d+ p90 ")
        self.stats("-p", pid, "--latency", "off", "-c", "1")
        self.assertNotIn("latency_ns", self.json()[1][fd])

    def test_prometheus(self):
        self.talk(COUNT)
        text = self.stats("--prometheus", "-p", str(self.pid))
        value = rf'(?m)^vma_socket_rx_packets_total{{pid="{self.pid}",program="python3[^"]*",fd="{self.fds["echo"]}",[^}}]*}} {COUNT}$'
        self.assertRegex(text, value)
        seen = {}
        for line in text.splitlines():
            # Exposition format: HELP and TYPE once and before the samples of a metric, each sample once.
            if line.startswith("# "):
                _, word, name, rest = line.split(" ", 3)
                self.assertNotIn((word, name), seen)
                seen[word, name] = rest
            else:
                name, labels, number = re.fullmatch(r'([a-z_]+)\{((?:[a-z]+="[^"]*",?)*)\} ([\d.e+-]+)', line).groups()
                float(number)
                self.assertIn(("TYPE", name), seen, line)
                self.assertNotIn((name, labels), seen)
                seen[name, labels] = number
        server = self.b.start([binary("vma_stats"), "-k", self.folder, "--prometheus", "--listen", "0"])
        self.addCleanup(server.stop)
        url = server.expect(r"(http://127\.0\.0\.1:\d+/metrics)").group(1)
        served = self.b.run(["curl", "-sS", "--max-time", "10", url], timeout=20)
        self.assertRegex(served.out, value)
        self.assertIn("404", self.b.run(["curl", "-sS", "--max-time", "10", "-i", url.replace("metrics", "x")], timeout=20).out)


    def test_doctor_names_what_mends_it(self):
        self.talk(1)
        self.b.run(["ethtool", "-K", self.b.dev, "tso", "on", "gso", "on", "tx", "on", "rx", "on"])
        finding = f"{self.b.dev}: segmentation offload is off"
        self.assertNotIn(finding, self.stats("doctor"))
        self.b.run(["ethtool", "-K", self.b.dev, "tso", "off", "gso", "off"])
        out = self.stats("doctor", "-p", str(self.pid))
        self.assertRegex(out, rf"(?m)^python3\S* \(pid {self.pid}\): fd {self.fds['six']} is the kernel's: ipv6")
        command = re.search(rf"(?m)^{finding}.*\n    (ethtool .*)$", out)
        self.assertIsNotNone(command, out)
        done = self.b.run(command.group(1).split())
        self.assertEqual(done.rc, 0, done.out)
        self.assertNotIn(finding, self.stats("doctor"))

    def test_record_report_and_top(self):
        recording, page = os.path.join(self.folder, "session.jsonl"), os.path.join(self.folder, "report.html")
        self.stats("-p", str(self.pid), "--latency", "on", "-c", "1")
        self.talk(20)
        recorder = self.b.start([binary("vma_stats"), "-k", self.folder, "record", "-o", recording, "-i", "1", "-c", "3"])

        def looked():
            return os.path.exists(recording) and os.path.getsize(recording) > 0

        self.assertTrue(eventually(looked))
        self.talk(COUNT)
        self.assertEqual(recorder.wait(20), 0, recorder.out)
        self.stats("report", page, "-r", recording)
        with open(page, encoding="utf-8") as f:
            text = f.read()
        self.assertNotRegex(text, r"(?i)https?:|<script|<link|src=")  # nothing to fetch
        charts = Svg(text)
        self.assertIn("python3", charts.text)
        self.assertIn(f"fd {self.fds['echo']} udp {self.b.ip}:{PORT}", charts.text)
        # Two intervals; the rate of the echo's calls over them is what was sent.
        self.assertTrue(any(len(line) == 2 for line in charts.lines), charts.lines)
        self.assertGreater(charts.bars, 0)
        self.assertIn("is not of a recording", self.stats("report", page, "-r", page, status=1))
        top = self.stats("top", "-i", "1", "-c", "2")
        self.assertEqual(len(re.findall(rf"(?m)^  {self.fds['echo']} +udp +offloaded +\* ", top)), 2, top)
        self.assertRegex(top, rf"ring 0 on {self.b.dev}: rx ")
        self.assertRegex(top, r"(?m)^ +read +\d+[num]s [▁▂▃▄▅▆▇█ ]*[▁▂▃▄▅▆▇█] \d+[num]s$")
        self.assertNotIn("\033", top)  # not a terminal

    def test_a_recording_waits_for_a_process(self):
        folder, recording = os.path.join(self.folder, "later"), os.path.join(self.folder, "later.jsonl")
        os.mkdir(folder)
        recorder = self.b.start([binary("vma_stats"), "-k", folder, "record", "--wait", "-o", recording, "-i", "0.05"])
        self.assertTrue(eventually(lambda: os.path.exists(recording)))
        program = self.python(self.b, "udp_seen.py", self.b.ip, PORT + 10, preload=True, start=True, stdin=subprocess.PIPE,
                              env={"VMA_STATS_SHMEM_DIR": folder, "VMA_TRACELEVEL": "warning"})
        self.assertTrue(eventually(lambda: os.path.getsize(recording) > 0, timeout=20))
        program.stdin.close()
        self.assertEqual(program.wait(10), 0, program.out)
        self.assertEqual(recorder.wait(20), 0, recorder.out)
        with open(recording, encoding="utf-8") as f:
            seen = [[p["program"] for p in json.loads(line)["look"]["processes"]] for line in f]
        self.assertTrue(seen and all(len(names) == 1 and names[0].startswith("python3") for names in seen), seen)


class Svg(html.parser.HTMLParser):
    """What a report holds: its text, the points of each line, how many bars. Raises on elements that do not nest."""

    def __init__(self, page):
        super().__init__()
        self.text, self.lines, self.bars, self.open = "", [], 0, []
        self.feed(page)
        self.close()
        if self.open:
            raise ValueError(f"not closed: {self.open}")

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)
        self.bars += tag == "rect"

    def handle_startendtag(self, tag, attrs):
        if tag == "polyline":
            self.lines.append([tuple(map(float, p.split(","))) for p in dict(attrs)["points"].split()])

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            raise ValueError(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        self.text += data.replace("\u2192", "->")


class SeenTcp(Viewed):
    script = "tcp_seen.py"

    def test_connection_and_listeners(self):
        client = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(client.close)
        client.settimeout(5)
        client.connect((self.b.ip, PORT))
        self.fds["connection"] = int(self.program.expect(r"connection (\d+)").group(1))
        client.sendall(b"x" * COUNT)
        received = b""
        while len(received) < COUNT:
            received += client.recv(65536)
        ring = rf"offloaded: packet ring on {self.b.dev}"
        peer = "%s:%d" % client.getsockname()
        self.assertRegex(self.explained("listener"), rf"tcp +{self.b.ip}:{PORT} +-> \* +{ring}")
        self.assertRegex(self.explained("connection"), rf"tcp +{self.b.ip}:{PORT} +-> {peer} +{ring}")
        self.assertRegex(self.explained("loopback"), r"tcp +127\.0\.0\.1:\d+ .* kernel")
        (process,) = json.loads(self.stats("--json", "-p", str(self.pid)))["processes"]
        sockets = {s["fd"]: s for s in process["sockets"]}
        connection = sockets[self.fds["connection"]]
        self.assertEqual((connection["tcp_state"], connection["counters"]["rx_bytes"], connection["counters"]["tx_bytes"]),
                         ("ESTABLISHED", COUNT, COUNT))
        self.assertEqual((connection["receive_queue"], connection["send_queue"]), (0, 0))
        self.assertEqual(sockets[self.fds["listener"]]["tcp_state"], "LISTEN")
        detail = connection["tcp"]
        self.assertEqual((detail["congestion_control"], detail["waiting"], detail["bytes_sent"], detail["bytes_received"]),
                         ("cubic", "application", COUNT, COUNT), detail)
        self.assertTrue(0 < detail["rtt"] < 5e6 and detail["snd_cwnd"] >= 10 and detail["snd_mss"] > 500, detail)
        self.assertNotIn("tcp", sockets[self.fds["listener"]])
        flows = self.stats("-p", str(self.pid), "--dump=flows")
        self.assertRegex(flows, rf"(?m)^0 +connection +{self.b.ip}:{PORT} +{peer} +ESTABLISHED")
        self.assertRegex(flows, rf"(?m)^0 +listener +{self.b.ip}:{PORT} +\* +LISTEN")
        full = self.stats("-p", str(self.pid), "-v", "3", "-c", "1")
        self.assertRegex(full, rf"TCP: ts sack cubic wscale:\d+,\d+ rto:[\d.]+ rtt:[\d.]+/[\d.]+ .* cwnd:{detail['snd_cwnd']}")
        # A peer that does not read: the sender waits for its window, and the page says so.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(0.2)
        try:
            while True:
                client.sendall(b"y" * 65536)
        except TimeoutError:
            pass

        def waiting():
            (again,) = json.loads(self.stats("--json", "-p", str(self.pid)))["processes"]
            return [s["tcp"]["waiting"] for s in again["sockets"] if s["fd"] == self.fds["connection"]]

        self.assertTrue(eventually(lambda: waiting() == ["peer_window"]), waiting())

    def test_what_a_socket_did_is_kept_when_it_is_closed(self):
        client = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        client.settimeout(5)
        client.connect((self.b.ip, PORT))
        fd = self.program.expect(r"connection (\d+)").group(1)
        client.sendall(b"x" * 3000)
        received = 0
        while received < 3000:
            received += len(client.recv(65536))
        client.close()
        self.program.stdin.close()
        self.assertEqual(self.program.wait(10), 0, self.program.out)
        with open(os.path.join(self.folder, f"closed.{self.pid}"), encoding="ascii") as f:
            blocks = f.read().split("=" * 54 + "\n")
        self.assertEqual((blocks[0], blocks[-1]), ("", ""), "a line before each socket and one at the end")
        (connection,) = [b for b in blocks if f"\tFd=[{fd}]\n" in b]
        self.assertIn(f"- Local Address   = [{self.b.ip}:{PORT}]\n", connection)
        self.assertRegex(connection, r"(?m)^Tx Offload: 2 / \d+ / 0 / 0 \[kilobytes/packets/eagains/errors\]$")
        self.assertRegex(connection, r"(?m)^Rx Offload: 2 / \d+ / \d+ / 0 ")
        self.assertIn("bytes_received:3000", connection)
        # At the end the memory of each ring.
        (memory,) = [b for b in blocks if "\tBUFFER_POOL(RX)=[0]\n" in b]
        self.assertRegex(memory, r"In use: +0 / [1-9]\d* \[now/most\]\nNo buffers error: +0\nMemory: +[1-9]\d* / [1-9]\d* ")


class Iperf(case.NetCase):
    def test_bytes_are_those_of_the_program(self):
        folder = tempfile.mkdtemp(prefix="vma-stats-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        kept = os.path.join(folder, "closed")
        server = self.b.start(["iperf3", "-s", "-1", "-B", str(self.b.ip)], env={
            "LD_PRELOAD": os.environ["VMA_TEST_LIB"], "VMA_STATS_FILE": kept, "VMA_STATS_SHMEM_DIR": folder, "VMA_TRACELEVEL": "warning"})
        self.b.wait_bound("tcp", 5201, process=server)
        done = self.a.run(["iperf3", "-c", str(self.b.ip), "-n", "50M", "-J"], timeout=60)
        self.assertEqual(done.rc, 0, done.out)
        self.assertEqual(server.wait(20), 0, server.out)
        end = json.loads(done.out)["end"]
        # The data connection begins with a cookie of 37 bytes. The server ends when it is told to, perhaps with text unread.
        read, most = end["sum_received"]["bytes"] + 37, end["sum_sent"]["bytes"] + 37
        with open(kept, encoding="ascii") as f:
            blocks = f.read()
        self.assertIn(f"Rx Offload: {read // 1024} / ", blocks, end)
        received = [int(n) for n in re.findall(r"bytes_received:(\d+)", blocks)]
        self.assertTrue(any(read <= n <= most for n in received), (read, received, most))


class Sockperf(case.NetCase):
    def test_messages_and_frames_are_those_of_the_program_and_of_the_wire(self):
        folder = tempfile.mkdtemp(prefix="vma-stats-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        # The other end of the wire is the kernel's: it counts what it sends to the server and gets from it.
        done = self.a.run(["nft", "add table ip t; add chain ip t o { type filter hook output priority 0; }; add chain ip t i { type filter "
                           f"hook input priority 0; }}; add rule ip t o udp dport {PORT} counter; add rule ip t i udp sport {PORT} counter"])
        self.assertEqual(done.rc, 0, done.out)
        server = self.b.start(["sockperf", "server", "-i", self.b.ip, "-p", str(PORT)], env={
            "LD_PRELOAD": os.environ["VMA_TEST_LIB"], "VMA_STATS_SHMEM_DIR": folder, "VMA_TRACELEVEL": "warning"})
        self.b.wait_bound("udp", PORT, process=server)
        client = self.a.run(["sockperf", "ping-pong", "-i", self.b.ip, "-p", str(PORT), "-t", "1", "-m", "200"])
        self.assertEqual(client.rc, 0, client.out)
        sent, answers = map(int, re.search(r"Total Run\].* SentMessages=(\d+); ReceivedMessages=(\d+)", client.out).groups())
        page = json.loads(self.b.run([binary("vma_stats"), "-k", folder, "--json"]).out)
        (process,) = page["processes"]
        (ring,) = process["rings"]
        (seen,) = [s["counters"] for s in process["sockets"] if s["local"] == f"{self.b.ip}:{PORT}"]
        table = self.a.run(["nft", "list", "table", "ip", "t"]).out
        out, back = [tuple(map(int, n)) for n in re.findall(r"counter packets (\d+) bytes (\d+)", table)]
        self.assertEqual(seen["rx_packets"], sent, client.out)
        self.assertEqual(seen["tx_packets"] + seen["tx_os_packets"], back[0], client.out)
        self.assertIn(back[0] - answers, (0, 1), client.out)  # the last one may come after the client's end
        ethernet = 14
        self.assertEqual((ring["rx_frames"], ring["rx_bytes"]), (out[0], out[1] + ethernet * out[0]))
        by_kernel = seen["tx_os_packets"]  # the first, which resolves the neighbour
        self.assertLessEqual(by_kernel, 2)
        self.assertEqual((ring["tx_frames"], ring["tx_bytes"]),
                         (back[0] - by_kernel, back[1] + ethernet * back[0] - by_kernel * (back[1] // back[0] + ethernet)))
        self.assertEqual((ring["drops"], seen["rx_dropped_full"]), ({}, 0))


class Probes(unittest.TestCase):
    def test_static_probes_are_in_the_library(self):
        notes = subprocess.run(["readelf", "-n", os.environ["VMA_TEST_LIB"]], capture_output=True, text=True, check=True).stdout
        probes = set(re.findall(r"Provider: vma\s+Name: (\w+)", notes))
        self.assertEqual(probes, {"connect", "accept", "tcp_state", "tcp_retransmit", "hand_back"})


class Cost(unittest.TestCase):
    """Instructions, counted in process by callgrind: what the page costs whoever writes it."""

    def instructions(self, what, page=True):
        """Of one turn: the difference of two runs, so that start and end do not count."""
        totals = []
        with tempfile.TemporaryDirectory(prefix="vma-stats-") as folder:
            for times in (1000, 3000):
                done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", binary("stats_cost"),
                                       folder if page else "", what, str(times)], capture_output=True, text=True, timeout=50)
                self.assertEqual(done.returncode, 0, done.stderr)
                totals.append(int(re.search(r"Collected : (\d+)", done.stderr).group(1)))
        return (totals[1] - totals[0]) / 2000

    def test_publishing_a_socket(self):
        counts = {what: self.instructions(what) for what in ("publish", "due", "record")}
        print(counts)
        self.assertLessEqual(counts["publish"], 300)
        self.assertLessEqual(counts["due"], 100)
        self.assertLessEqual(counts["record"], 40)

    def test_the_way_of_a_packet(self):
        """With a page and without one: the same instructions."""
        with_page, without = self.instructions("frame"), self.instructions("frame", page=False)
        print(with_page, without)
        self.assertGreater(without, 100)
        self.assertLess(abs(with_page - without), 0.01 * without)  # reading the clock is not the same every time


class InABrowser(Viewed):
    """Headless Chromium draws the report."""

    script = "tcp_seen.py"

    def test_report_is_drawn(self):
        recording, page, picture = (os.path.join(self.folder, n) for n in ("s.jsonl", "r.html", "r.png"))
        client = self.a.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.addCleanup(client.close)
        client.settimeout(5)
        client.connect((self.b.ip, PORT))
        recorder = self.b.start([binary("vma_stats"), "-k", self.folder, "record", "-o", recording, "-i", "1", "-c", "4"])
        while recorder.running():
            client.sendall(b"x" * 1000)
            received = 0
            while received < 1000:
                received += len(client.recv(65536))
        self.assertEqual(recorder.wait(20), 0, recorder.out)
        self.stats("report", page, "-r", recording)
        browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/profile"]
        dom = subprocess.run([*browser, "--dump-dom", f"file://{page}"], capture_output=True, text=True, timeout=120, check=True)
        self.assertGreaterEqual(dom.stdout.count("<polyline"), 4, dom.stdout[:2000])
        self.assertNotIn("NaN", dom.stdout)
        subprocess.run([*browser, f"--screenshot={picture}", "--window-size=800,1600", f"file://{page}"], capture_output=True,
                       timeout=120, check=True)
        with open(picture, "rb") as f:
            self.assertEqual(f.read(8), b"\x89PNG\r\n\x1a\n")
        self.assertGreater(os.path.getsize(picture), 10000)  # an empty page of this size is a tenth of that


if __name__ == "__main__":
    case.main()
