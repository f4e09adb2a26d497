"""Everything behind `tools/train_tiny.py`: text, vocabulary, model, training, rounding, export."""
