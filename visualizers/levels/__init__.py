"""What is derived from a visualizer's contract: printed and instant figure, Markdown, data, controls."""
