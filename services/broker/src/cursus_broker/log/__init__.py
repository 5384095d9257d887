"""The storage engine: partitions as segments of checksummed entries on local files.

`api.py` is the contract, `engine.py` the way in. Nothing here knows of topics, groups or gRPC.
"""
