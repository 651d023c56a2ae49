"""The harness disappears midway: every call returns, and the script exits with status 0."""

import signal
import sys
import time

from headroom_train.wire import Wire, notice

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
wire = Wire.get()
plan = wire.hello(torch="none")
print("plan", plan["mode"], plan.get("limit"), flush=True)
sys.stdin.readline()  # until the harness is gone
began = time.monotonic()
for step in range(20000):
    wire.step(step=step, rows=8)
wire.note("nobody hears it")
wire.oom(rows=8, micro=8, requested=1)
wire.survived(way="pieces", rows=8, pieces=2)
wire.refused("nobody acknowledges it")
notice("headroom is gone")
wire.bye()
print("alone", Wire.get() is None, time.monotonic() - began < 5)
