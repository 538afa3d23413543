"""One contender, a loop written by hand or offbeat, in its own process: see `offbeat.bench.worker`."""

from __future__ import annotations

import sys

from benchmarks.by_hand.contend import contender
from offbeat.bench.worker import main

if __name__ == "__main__":
    main(sys.argv[1:], make=contender)
