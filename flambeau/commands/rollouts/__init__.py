"""Commands on the traffic of a model: rollouts, shadows and splits."""
