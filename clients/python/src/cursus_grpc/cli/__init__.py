"""The `cursus` command: what people type. It uses the public client and nothing of the broker, except where it looks at
a data directory without one (`segments`).

Data goes to stdout, talk to stderr. Exit status: 0, 1 where something was refused or found wrong, 2 for wrong usage.
"""
