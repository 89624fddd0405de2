"""What the bytes mean: requests of the Open Inference Protocol and ours, over REST and gRPC."""
