"""Several outputs of one prompt: samples that part from each other, and beam search."""
