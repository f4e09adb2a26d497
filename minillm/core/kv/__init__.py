"""What the KV cache can do beside tables and a pool: prefixes, eviction, swap, windows, holds, layer groups."""
