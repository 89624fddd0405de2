"""Load: requests over REST and gRPC, closed loop and open loop."""
