"""The small installation, on every interpreter of this machine: `make test-pythons`."""
