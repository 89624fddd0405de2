"""Hyper-parameter search: many short trainings of one recipe, the best of which is published."""
