"""Messages of TorchServe's gRPC protocols."""
