"""Access control: API keys, tokens of an identity provider, scopes, rates, and the audit log."""
