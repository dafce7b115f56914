"""clock_step.py SECONDS: sets the machine's clock (CLOCK_REALTIME) on or back by so many seconds and says "set"; sets it right again when its
standard input ends or after LONGEST seconds, and says "right". Nothing but SIGKILL keeps it from that. Few seconds: files that others write
meanwhile get them, too.

The time on the machine goes on meanwhile as CLOCK_MONOTONIC counts it, which no setting of the clock moves.
"""

import gc
import select
import signal
import sys
import time

LONGEST = 0.8

signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
gc.disable()
step = int(float(sys.argv[1]) * 1e9)
ahead = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
try:
    time.clock_settime_ns(time.CLOCK_REALTIME, time.clock_gettime_ns(time.CLOCK_MONOTONIC) + ahead + step)
    print("set", flush=True)
    select.select([sys.stdin], [], [], LONGEST)
finally:
    time.clock_settime_ns(time.CLOCK_REALTIME, time.clock_gettime_ns(time.CLOCK_MONOTONIC) + ahead)
print("right", flush=True)
