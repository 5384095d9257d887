"""How fast the broker is, against a bare gRPC service measured in the same run. `make bench`; see README.md."""
