"""The trainer's REST and gRPC interfaces."""
