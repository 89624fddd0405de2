"""Requests come in and responses go out: two edges (REST, gRPC) and one admission."""
