"""The Cursus contract for Python.

`v1` is generated from `cursus/v1/*.proto`, `internal.v1` is the broker's view of the same messages with record sets as
bytes. The modules beside them hold what every end of the wire must agree on, written once.
"""
