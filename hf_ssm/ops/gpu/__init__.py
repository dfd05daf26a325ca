"""What the Triton kernels share: their declaration and launch, common device functions, and the model of their cost.

Importing this package does not import Triton; its modules do, and so do the `triton*.py` of the operations.
"""
