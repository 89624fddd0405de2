"""Jobs that are submitted through a gateway, and their webhooks."""
