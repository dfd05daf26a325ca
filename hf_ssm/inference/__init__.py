"""Tables from sequences: predictions, embeddings, scores of variants, for models of hf_ssm and of transformers."""

__all__: list[str] = []
