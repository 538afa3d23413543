"""How fast offbeat is on this machine: fixed workloads, timed in turns."""
