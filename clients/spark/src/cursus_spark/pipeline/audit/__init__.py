"""The job `audit`: what a topic's log proves about itself.

command.py     the job: what it is asked for, in which order it works, how it ends
scope.py       which offsets of which partitions, and what of them cannot be read
batches.py     records to batches, once, with all that is asked of a record; everything after works on batches
checks.py      what must not be in a log, as queries over its batches
findings.py    what was found, and how bad that is
statistics.py  how much there is, when it came, how large and how late
report.py      the outcome as a page, with the drawings of plots.py
"""
