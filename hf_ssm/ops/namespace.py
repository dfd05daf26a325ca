"""The namespace of this package's custom operators."""

import hashlib

__all__ = ["NAMESPACE"]

# Copies of this code come with checkpoints, several of them in one process; torch knows one operator of a name.
_PACKAGE = __name__.rpartition(".")[0]

NAMESPACE = "hf_ssm" if _PACKAGE == "hf_ssm.ops" else f"hf_ssm_{hashlib.sha256(_PACKAGE.encode()).hexdigest()[:12]}"
"""`"hf_ssm"`, and in each copy of the code a name of its own."""
