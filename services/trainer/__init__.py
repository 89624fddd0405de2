"""Training jobs as a service; see docs/training-service.md for its use."""
