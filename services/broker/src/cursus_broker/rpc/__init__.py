"""The gRPC surface: the only package that imports grpc. Servicers decode, delegate, encode."""
