"""TorchServe's protocol: archives that callers register, scale and unregister."""
