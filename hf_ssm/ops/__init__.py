"""Mathematics of sequences: tensors in, tensors out; imports torch, and transformers' kernel loader."""
