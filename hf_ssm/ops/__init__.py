"""Operations on sequences, a folder each: functions of tensors that depend on torch and transformers' kernel loader."""
