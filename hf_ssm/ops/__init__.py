"""Mathematics of sequences: tensors in, tensors out; imports torch only."""
