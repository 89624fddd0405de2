"""The server processes: gateways that accept requests, queues, workers that run batches."""
