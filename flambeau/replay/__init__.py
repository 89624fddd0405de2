"""Replay of requests to two servers, and capture of requests in front of one."""
