"""The REST protocol of TensorFlow Serving and KServe's version 1."""
