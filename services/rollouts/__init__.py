"""Rollouts of versions: shares of the traffic, and what that traffic says about a version."""
