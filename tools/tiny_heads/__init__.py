"""Training of the bundled draft heads of ``tiny``: Medusa, EAGLE-style, and multi-token prediction."""
