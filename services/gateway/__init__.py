"""The gateway: two edges (REST, gRPC) receive requests and send responses; one admission."""
