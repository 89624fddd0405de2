"""Requests that name no version: drawn for one of several versions, counted, and mirrored."""
