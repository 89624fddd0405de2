"""TorchServe's model archives: reads them within limits, and describes how they are to run."""
