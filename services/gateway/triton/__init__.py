"""What Triton does and the Open Inference Protocol does not say, in one place."""
