"""The contracts as .proto files, and the stubs generated from them by `make protos`."""
