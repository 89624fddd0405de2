"""Simulated rollouts, judged by the code that judges real ones."""
