"""Builds, initialises and tries the network of a recipe, with the steps before it."""
