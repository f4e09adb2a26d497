"""Speculation: drafts of several tokens, verified by the target in one step, with outputs that are the target's own."""
