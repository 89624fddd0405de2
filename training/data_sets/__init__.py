"""Real data that ships with scikit-learn, as the inputs that each family of networks takes."""
