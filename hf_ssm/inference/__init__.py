"""Tables from sequences: predictions, embeddings, scores of variants, for models of hf_ssm and of transformers."""

from hf_ssm.inference.embed import embed
from hf_ssm.inference.linear_probe import linear_probe
from hf_ssm.inference.predict import predict

__all__ = ["embed", "linear_probe", "predict"]
