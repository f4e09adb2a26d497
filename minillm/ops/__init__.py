"""The operators of a decoder: the seam between an architecture and the library that computes it."""
