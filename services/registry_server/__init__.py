"""The registry as a process of its own: beside gateways, which have no model store."""
