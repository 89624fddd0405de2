"""Optimizers, their steps and schedules."""
