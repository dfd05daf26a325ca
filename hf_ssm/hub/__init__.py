"""Model cards and the way to and from the Hugging Face Hub."""
