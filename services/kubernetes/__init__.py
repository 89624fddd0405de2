"""Objects of Kubernetes: their API, and the controller of `ModelRollout`s."""
