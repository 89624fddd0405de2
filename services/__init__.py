"""The processes: gateways that take requests, inference that runs batches, a queue between."""
