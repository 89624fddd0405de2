"""Real data that ships with scikit-learn, as the inputs of each family of networks."""
