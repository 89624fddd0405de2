"""Jobs and verifications that are submitted through a gateway, and their webhooks."""
