"""`nn.Module`s made of `hf_ssm.ops`: long filters, mixers, blocks, pooling."""
