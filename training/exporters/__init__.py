"""One file for each way to make an artifact out of a trained model."""
