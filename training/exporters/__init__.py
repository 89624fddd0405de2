"""Exporters of a trained model, one file per artifact format."""
