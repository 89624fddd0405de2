"""Reads models that run in torch: exported programs, TorchScript and compiled packages."""
