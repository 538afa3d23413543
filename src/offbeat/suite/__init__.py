"""The benchmark suite: frozen tasks, clocks, methods and rules, under which anybody can put a method of their own.

definition   the frozen files of a version, and the experiment of each cell (a task under a clock)
run          tunes and judges every method in every cell, cell by cell, several at once
result       the result file: scores of every method, seed and cell, with settings, versions and digests
compare      who is better than whom beyond chance
page         the result as a page, and as Markdown
verify       runs the judging seeds of a result file again
"""
