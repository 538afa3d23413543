"""From an experiment file or a dict to objects, runs, a folder and results; sweeps, ranking, real runs."""
