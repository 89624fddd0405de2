"""Hyper-parameter search: many short trainings of one recipe; the best one is published."""
