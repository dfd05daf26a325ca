"""Tables from sequences: predictions, embeddings, scores of variants, for models of hf_ssm and of transformers."""

from hf_ssm.inference.predict import predict

__all__ = ["predict"]
