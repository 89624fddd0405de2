"""HTTP/2 connections, and the gRPC calls on them."""
