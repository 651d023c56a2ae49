"""Whatever comes over the wire, nothing is raised and nothing hangs."""

import sys

from headroom_train import wire

wire.GREETING = wire.HEARING = 0.05
for _ in range(int(sys.argv[1])):
    w = wire.Wire(sys.argv[2])
    plan = w.hello(torch="none")
    assert plan is None or isinstance(plan, dict)
    for step in range(5):
        w.step(step=step, seconds=float("nan") if step == 3 else 0.1, thing=object())
    w.oom(rows=8)
    w.refused("no reason")
    assert w.limit >= 0 and isinstance(w.armed, bool)
    w.note("\ud800 and so on")
    w.bye()
    assert not w.alive
print("done")
