"""TorchServe's REST and gRPC APIs."""
