"""What every Cursus service needs to run and none should write twice.

`settings` merges flags, environment, file and defaults; `logging` configures structlog; `http` answers health and
metrics; `process` owns the loop, the signals and the limits. Nothing here knows what a broker or a gateway does.
"""
