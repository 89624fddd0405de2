"""Deployment files, and the programs that pin their dependencies."""
