"""Training jobs as a service: a recipe in, a published version out; see docs/training-service.md."""
