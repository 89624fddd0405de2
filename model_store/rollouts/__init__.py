"""Rollouts, shadows and splits of a model's traffic, as the pointers of the store keep them."""
