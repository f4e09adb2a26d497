"""Draft heads: small networks that read a target's hidden states and say which tokens may come next."""
