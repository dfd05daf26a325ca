"""One model on several devices."""

from hf_ssm.parallel.tensor import clip_grad_norm_, tensor_parallel

__all__ = ["clip_grad_norm_", "tensor_parallel"]
