"""A web page on which a model can be tried: predictions, importance of bases, variants, frequencies, theory."""

from hf_ssm.app.page import build_page, launch
from hf_ssm.app.served import Example, ServedModel

__all__ = ["Example", "ServedModel", "build_page", "launch"]
