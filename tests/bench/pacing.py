#!/usr/bin/env python3
"""How exactly the library keeps SO_MAX_PACING_RATE of UDP sockets: rates in Mbit/s (of Ethernet frames, as fq counts) and ways of
sending, 5 s each; the receiver is the kernel's. The table is docs/evidence/8-udp-pacing.txt.

    pacing.py [RATE,...] [plain,mmsg,segment]     RATE 0: none, by the kernel and by the library: what the program itself can do

A row: what was received against the rate; the bucket that a limiter of the rate would need to let all of it pass, and one of twice
the rate (at which what was late is made up for), against the allowed (2 frames or 1 ms); and what was sent.
"""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from netns import Net, binary, preload_env  # noqa: E402

FRAME, PORT, SECONDS = 1514, 7700, 5


def numbers(pattern, process):
    return [float(x) for x in re.search(pattern, process.out).groups()]


def measure(net, mbit, how, preload=True):
    a, b = net["a"], net["b"]
    rate = round(mbit * 1e6 / 8)
    receiver = b.start([binary("paced_stream"), "recv", b.ip, str(PORT), str(rate or 1e12), str(SECONDS)], cpu=1)
    receiver.expect("ready", 10)
    sender = a.start([binary("paced_stream"), "send", b.ip, str(PORT), str(rate), str(SECONDS + 0.5), how], cpu=0,
                     env=preload_env() if preload else None)
    receiver.wait(30)
    sender.wait(30)
    count, seconds, burst, doubled = numbers(r"got (\d+) in ([0-9.]+) s, bursts (\d+) (\d+)", receiver)
    sent, sending = numbers(r"sent (\d+) in ([0-9.]+) s", sender)
    reached = (count - 1) * FRAME / seconds  # the first one opens the time
    text = f"{mbit or 'none':>6} {how:8}{'' if preload else ' by the kernel':15}{reached * 8 / 1e6:10.3f} Mbit/s"
    if rate:
        allowed = max(2 * FRAME, rate / 1000)
        text += f" {100 * (reached / rate - 1):+8.3f} %   burst {burst:8.0f}, at twice the rate {doubled:8.0f}, of {allowed:8.0f}"
    print(text, f"  sent {sent * FRAME * 8 / sending / 1e6:10.3f} Mbit/s", flush=True)


def main():
    rates, ways = (sys.argv[1:] + ["", ""])[:2]
    with Net("ab") as net:
        mac = net["b"].run(["ip", "-br", "link", "show", net["b"].dev]).out.split()[2]
        subprocess.run(["ip", "-n", net["a"].name, "neigh", "replace", net["b"].ip, "lladdr", mac, "dev", net["a"].dev, "nud",
                        "permanent"], check=True)
        for mbit in (rates or "1,10,100,500,1000,2000,5000,0").split(","):
            for how in (ways or "plain,mmsg,segment").split(","):
                if mbit == "0":
                    measure(net, 0, how, preload=False)
                measure(net, float(mbit) if "." in mbit else int(mbit), how)


if __name__ == "__main__":
    main()
