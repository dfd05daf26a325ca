"""The code that travels with a checkpoint; see the README of this folder."""

from hf_ssm.checkpoint.bundle import HEADER, auto_map, bundle, family_of, file_names, refresh_code, write_code

__all__ = ["HEADER", "auto_map", "bundle", "family_of", "file_names", "refresh_code", "write_code"]
