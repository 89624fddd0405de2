"""The OpenAPI document of the served models, and the page that sends requests by it."""
