"""Training jobs as a service; see docs/guides/training-service.md for its use."""
