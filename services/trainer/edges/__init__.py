"""The trainer's REST and gRPC edges."""
