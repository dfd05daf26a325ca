"""What the papers compute from models and data: pure functions of tensors."""
