"""Training jobs as a service: docs/training-service.md says how it is used."""
