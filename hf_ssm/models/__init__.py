"""Hugging Face glue: configurations and models. Flat on purpose, so that it can travel as remote code."""
