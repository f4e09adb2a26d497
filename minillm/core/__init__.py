"""The control plane: requests, blocks, scheduling. Standard library only, knows nothing about tensors."""
